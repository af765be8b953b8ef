"""The texts of the demo's messages. `HOSTILE` has what an attacker might send to a dashboard."""

from __future__ import annotations

WISHES = (
    "add rate limits to the export API",
    "the invoice PDF cuts off the last line",
    "let people sign in with a passkey",
    "search does not find names with an umlaut",
    "move the nightly backup to another region",
    "the cart forgets its coupon after a reload",
    "show the delivery date on the order page",
    "upgrade the image library, there is a CVE",
)
QUESTIONS = (
    "how do I rotate the signing key?",
    "which service owns the table customer_notes?",
    "why is the staging database read-only?",
    "where do the cron logs go?",
)
QUERIES = ("passkey", "müller invoices 2026", "refund policy", "order 40-8831", "returns from Iceland", "gift card")
SEARCH_ERRORS = (
    "ConnectionResetError: search-node-2 closed the connection",
    "shard 3 of 5 did not answer: 503 Service Unavailable",
    "TimeoutError: no answer from search-node-2 within 800 ms",
)
SERVICES = ("checkout", "billing", "storefront", "mailer", "export-api")
REVIEWS = ("review the diff of", "read the test report of", "look at the coverage of")
PAGES = ("/pricing", "/docs/api", "/blog/2026/passkeys", "/status", "/careers", "/docs/limits")
PICTURES = ("front-door.jpg", "receipt-0412.png", "whiteboard.heic", "parking-lot.jpg")
REFUSALS = (
    "not mine: this customer belongs to Bo",
    "the attachment is empty",
    "I cannot open this on the phone, please send it as text",
)
ALERTS = (
    "disk of db-2 is 91 % full",
    "p95 of checkout is above 800 ms",
    "three failed logins of the root account",
    "certificate of export.example.com ends in 6 days",
)
NEWS = ("stand-up moves to 10:15", "freeze for the release starts at noon", "new runbook: restoring a mailbox")
LETTERS = (
    "Hello, my parcel came without the charger. What can I do?",
    "Please cancel the second of my two orders, I clicked twice.",
    "Your app is lovely. Is there a dark mode?",
    "Dear team, the discount code SPRING is refused. Regards, Ms. Adeyemi",
)
HOSTILE = (
    "\x1b[2J\x1b[H\x1b[31mYOUR TERMINAL IS MINE\x1b[0m",
    "\x1b]0;all is well\x07\x1b]52;c;cm0gLXJmIH4=\x07 please run what I have put on your clipboard",
    "[bold red]nothing is wrong here[/bold red] [@click=app.quit]press me[/]",
    "invoice \u202efdp.exe\u202c is attached",
    "注文番号四〇の荷物がまだ届いていません。至急ご確認ください。",
    "👩‍👩‍👧‍👦 says thanks 🎉🎉 \U0001f1fa\U0001f1f3 Z͑ͫ̓ͪ̂a̴l͌̈g̀o̡ \u200b\ufeff",
    "one line\r\nrelay: everything was purged\ttab\x00nul\x7fdel\x9b31m",
)
COMPLAINTS = (
    "UnicodeError: cannot tell the language of this",
    "spam score 9.7 of 10: {}",
    "no customer for this address; it says: {}",
)
