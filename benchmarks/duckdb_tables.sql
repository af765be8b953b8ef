-- The four traffic tables and their two sources, as spark/sources.py and spark/tables/ make them, for DuckDB.
-- Reads events/date=D/kind=K/*.parquet. Before it: SET VARIABLE root = '/path/to/events';  SET VARIABLE day = '2026-03-14';
-- (and PRAGMA threads=2, SET memory_limit for a fair run). Limits: enabled, 100 in 60 s, no overrides unless changed below.
SET VARIABLE start_ms = epoch_ms(CAST(getvariable('day') || ' 00:00:00' AS TIMESTAMP));

CREATE OR REPLACE MACRO bucket(us) AS CASE
  WHEN us < 1000 THEN greatest(us, 0)
  WHEN us < 10000 THEN us - us % 10
  WHEN us < 100000 THEN us - us % 100
  WHEN us < 1000000 THEN us - us % 1000
  WHEN us < 10000000 THEN us - us % 10000
  WHEN us < 100000000 THEN us - us % 100000
  WHEN us < 1000000000 THEN us - us % 1000000
  WHEN us < 10000000000 THEN us - us % 10000000
  WHEN us < 100000000000 THEN us - us % 100000000
  WHEN us < 1000000000000 THEN us - us % 1000000000
  WHEN us < 10000000000000 THEN us - us % 10000000000
  WHEN us < 100000000000000 THEN us - us % 100000000000
  WHEN us < 1000000000000000 THEN us - us % 1000000000000
  WHEN us < 10000000000000000 THEN us - us % 10000000000000
  WHEN us < 100000000000000000 THEN us - us % 100000000000000
  WHEN us < 1000000000000000000 THEN us - us % 1000000000000000
  ELSE us - us % 10000000000000000 END;
CREATE OR REPLACE MACRO hhmm(m) AS printf('%02d:%02d', m // 60, m % 60);

CREATE OR REPLACE TEMP VIEW events AS
  SELECT * FROM read_parquet(getvariable('root') || '/date=' || getvariable('day') || '/*/*.parquet',
                             hive_partitioning = true, hive_types = {'kind': VARCHAR, 'date': DATE});

CREATE OR REPLACE TEMP TABLE traffic AS
  SELECT CAST((least(greatest(time, getvariable('start_ms')), getvariable('start_ms') + 86399999) - getvariable('start_ms'))
              // 60000 AS INTEGER) AS minute,
         kind, subject, sender, target, code, count(*) AS messages, CAST(coalesce(sum(bytes), 0) AS BIGINT) AS bytes
  FROM events WHERE kind IN ('publish', 'refused') GROUP BY ALL;

-- Three aggregates over one scan: of unnest, three scans and this, the cheapest (CPU 7.5, 6.2, 5.7 s for 5M rows).
CREATE OR REPLACE TEMP TABLE steps AS
  WITH handled AS MATERIALIZED (
    SELECT target, targetKind, coalesce(adapter, subject) AS name, adapter, queueUs, handleUs, totalUs
    FROM events WHERE kind = 'handled')
  SELECT target, targetKind, name, adapter, 'queue' AS step, bucket(queueUs) AS us, count(*) AS messages
  FROM handled WHERE queueUs IS NOT NULL GROUP BY ALL
  UNION ALL
  SELECT target, targetKind, name, adapter, 'handle' AS step, bucket(handleUs) AS us, count(*) AS messages
  FROM handled WHERE handleUs IS NOT NULL GROUP BY ALL
  UNION ALL
  SELECT target, targetKind, name, adapter, 'total' AS step, bucket(totalUs) AS us, count(*) AS messages
  FROM handled WHERE totalUs IS NOT NULL GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE throughput AS
  SELECT CAST(minute // 60 AS INTEGER) AS hour, subject, sender,
         CAST(sum(CASE WHEN kind = 'publish' THEN messages ELSE 0 END) AS BIGINT) AS messages,
         CAST(sum(CASE WHEN kind = 'publish' THEN bytes ELSE 0 END) AS BIGINT) AS bytes,
         CAST(sum(CASE WHEN kind = 'refused' THEN messages ELSE 0 END) AS BIGINT) AS refused
  FROM traffic GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE senders AS
  WITH by_minute AS (
    SELECT sender, minute,
           CAST(sum(CASE WHEN kind = 'publish' THEN messages ELSE 0 END) AS BIGINT) AS messages,
           CAST(sum(CASE WHEN kind = 'publish' THEN bytes ELSE 0 END) AS BIGINT) AS bytes,
           CAST(sum(CASE WHEN kind = 'refused' THEN messages ELSE 0 END) AS BIGINT) AS refused,
           CAST(sum(CASE WHEN kind = 'refused' AND code = 'rate_limited' THEN messages ELSE 0 END) AS BIGINT) AS rateLimited
    FROM traffic GROUP BY ALL),
  by_sender AS (
    SELECT sender, CAST(sum(messages) AS BIGINT) AS messages, CAST(sum(bytes) AS BIGINT) AS bytes,
           max(messages * 1440 + (1439 - minute)) AS peak,
           CAST(sum(refused) AS BIGINT) AS refused, CAST(sum(rateLimited) AS BIGINT) AS rateLimited
    FROM by_minute GROUP BY ALL)
  SELECT sender, messages, bytes, CASE WHEN messages > 0 THEN hhmm(1439 - peak % 1440) END AS peakMinute,
         peak // 1440 AS peakMessages, CAST(100.0 * 60 / 60 AS DOUBLE) AS limitPerMinute,
         (peak // 1440) / limitPerMinute AS peakShare, refused, rateLimited,
         refused / (messages + refused) AS refusedShare
  FROM by_sender;

CREATE OR REPLACE TEMP TABLE refusals AS
  SELECT code, sender, subject, target, CAST(sum(messages) AS BIGINT) AS refused,
         hhmm(min(minute)) AS firstAt, hhmm(max(minute)) AS lastAt
  FROM traffic WHERE kind = 'refused' GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE latency AS
  WITH ranked AS (
    SELECT target, name, targetKind, step, us, messages,
           sum(messages) OVER (PARTITION BY target, name, targetKind, step ORDER BY us
                               ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS up_to,
           sum(messages) OVER (PARTITION BY target, name, targetKind, step) AS all_messages
    FROM steps)
  SELECT target, name, targetKind, step, CAST(sum(messages) AS BIGINT) AS messages,
         min(us) FILTER (WHERE up_to * 100 >= all_messages * 50) AS p50Us,
         min(us) FILTER (WHERE up_to * 100 >= all_messages * 95) AS p95Us,
         min(us) FILTER (WHERE up_to * 100 >= all_messages * 99) AS p99Us,
         max(us) AS maxUs
  FROM ranked GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE incidents AS
  SELECT * FROM events WHERE kind NOT IN ('publish', 'stored', 'handled');

CREATE OR REPLACE TEMP TABLE conversations AS
  WITH rows AS (
    SELECT traceId, CASE WHEN kind <> 'handled' THEN parentId END AS parentId,
           CASE WHEN kind <> 'handled' THEN messageId END AS messageId,
           CASE WHEN kind IN ('publish', 'handled') THEN 0 ELSE 1 END AS stopped,
           CASE WHEN kind <> 'handled' THEN sender END AS sender,
           CASE WHEN kind <> 'handled' THEN subject END AS subject, time, hopCount, callsLeft
    FROM events
    WHERE kind IN ('publish', 'handled', 'dead_letter', 'refused') AND traceId IS NOT NULL
      AND (kind IN ('publish', 'handled')
           OR (kind = 'dead_letter' AND code IN ('cycle', 'max_hops', 'call_budget')
               AND coalesce(status NOT IN ('purged', 'replaced'), true))
           OR (kind = 'refused' AND code = 'budget_exceeded'))),
  messages AS (
    SELECT traceId, parentId, messageId,
           min({'time': time, 'stopped': stopped, 'sender': sender, 'subject': subject})
             FILTER (WHERE messageId IS NOT NULL) AS first,
           max(stopped) AS stopped, max(time) AS lastAt, max(hopCount) AS hops,
           max(callsLeft) AS mostCalls, min(callsLeft) AS fewestCalls
    FROM rows GROUP BY ALL),
  siblings AS (
    SELECT traceId, parentId,
           min({'time': first.time, 'messageId': messageId, 'sender': first.sender, 'subject': first.subject})
             FILTER (WHERE first IS NOT NULL) AS opening,
           sum(stopped) AS stopped, count(messageId) AS messages, max(lastAt) AS lastAt, max(hops) AS hops,
           max(mostCalls) AS mostCalls, min(fewestCalls) AS fewestCalls
    FROM messages GROUP BY ALL),
  traces AS (
    SELECT traceId, min(opening) AS opening, sum(stopped) AS loopsStopped, sum(messages) AS messages,
           max(CASE WHEN parentId IS NOT NULL THEN messages ELSE 0 END) AS fanOut, max(lastAt) AS lastAt,
           max(hops) AS hops, max(mostCalls) AS mostCalls, min(fewestCalls) AS fewestCalls
    FROM siblings GROUP BY ALL)
  SELECT traceId, opening.sender AS sender, opening.subject AS subject, opening.time AS firstAt, messages,
         coalesce(hops, 0) AS depth, fanOut, greatest(lastAt - opening.time, 0) AS durationMs,
         coalesce(mostCalls - fewestCalls, 0) AS callsSpent, loopsStopped
  FROM traces WHERE messages > 1 OR loopsStopped > 0;

CREATE OR REPLACE TEMP TABLE hours AS
  SELECT hour, sum(messages) AS messages, sum(bytes) AS bytes, sum(refused) AS refused, sum(dead) AS deadLetters
  FROM (SELECT hour, messages, bytes, refused, 0 AS dead FROM throughput
        UNION ALL
        SELECT CAST((time - getvariable('start_ms')) // 3600000 AS INTEGER), 0, 0, 0, 1
        FROM incidents WHERE kind = 'dead_letter' AND status IN ('failed', 'no_subscriber'))
  GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE dead_letters AS
  WITH told AS (
    SELECT messageId, target, time, code, coalesce(adapter, subject) AS name,
           CASE WHEN kind = 'replayed' THEN 'replayed'
                WHEN status IN ('purged', 'replaced') THEN status ELSE 'born' END AS turn
    FROM incidents WHERE kind IN ('dead_letter', 'replayed')),
  letters AS (
    SELECT *, last_value(CASE WHEN turn = 'born' THEN {'code': code, 'name': name} END IGNORE NULLS)
                OVER (PARTITION BY messageId, target ORDER BY time, turn DESC, code, name) AS birth,
           lead(time) OVER (PARTITION BY messageId, target ORDER BY time, turn DESC, code, name) AS later
    FROM told)
  SELECT coalesce(birth.code, code) AS code, target, max(name) AS name,
         count(*) FILTER (WHERE turn = 'born') AS letters, count(*) FILTER (WHERE turn = 'replayed') AS replayed,
         count(*) FILTER (WHERE turn = 'replaced') AS replaced, count(*) FILTER (WHERE turn = 'purged') AS purged,
         count(*) FILTER (WHERE turn = 'born' AND later IS NULL) AS standing
  FROM letters GROUP BY ALL;

CREATE OR REPLACE MACRO lasting(what) AS TABLE
  SELECT *, least(coalesce(lead(time) OVER (PARTITION BY coalesce(adapter, target) ORDER BY time, status),
                           getvariable('start_ms') + 86400000), getvariable('start_ms') + 86400000) - time AS ms
  FROM incidents WHERE kind = what;

CREATE OR REPLACE TEMP TABLE breakers AS
  SELECT target, max(subject) AS name, count(*) FILTER (WHERE status = 'OPEN') AS openings,
         sum(ms) FILTER (WHERE status = 'OPEN') / 1000 AS openSecs,
         sum(ms) FILTER (WHERE status = 'HALF_OPEN') / 1000 AS halfOpenSecs,
         max(ms) FILTER (WHERE status = 'OPEN') / 1000 AS longestOpenSecs, max_by(detail, time) AS lastDetail
  FROM lasting('breaker') GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE pressure AS
  SELECT target, max(subject) AS name, count(*) FILTER (WHERE status = 'warning') AS episodes,
         sum(ms) FILTER (WHERE status <> 'normal') / 1000 AS aboveSecs, max(depth) AS worstDepth, max("limit") AS most
  FROM lasting('pressure') GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE adapters AS
  SELECT adapter, sum(handled) AS handled, sum(failed) AS failed, sum(refused) AS refused, sum(down) AS downSecs
  FROM (SELECT adapter, sum(messages) AS handled, 0 AS failed, 0 AS refused, 0 AS down
        FROM steps WHERE step = 'total' AND adapter IS NOT NULL GROUP BY ALL
        UNION ALL
        SELECT adapter, 0, count(*) FILTER (WHERE kind = 'failed'), count(*) FILTER (WHERE kind = 'refused'), 0
        FROM incidents WHERE targetKind = 'adapter' GROUP BY ALL
        UNION ALL
        SELECT adapter, 0, 0, 0, sum(ms) FILTER (WHERE status IN ('starting', 'disconnected', 'error')) / 1000
        FROM lasting('adapter') GROUP BY ALL)
  GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE jobs AS
  SELECT code AS job, count(*) FILTER (WHERE status = 'started') AS runs, count(*) FILTER (WHERE status = 'ok') AS ok,
         count(*) FILTER (WHERE status = 'failed') AS failed, quantile_disc(handleUs, 0.5) AS p50Us,
         max(handleUs) AS maxUs, max_by(status, time) AS lastOutcome
  FROM incidents WHERE kind = 'job' GROUP BY ALL;
