"""The program's options, from an agent's config. Everything is denied by default.

1. A built-in tool that the config does not name does not exist (``--tools``), and calls that the rules do not allow are
   denied without asking (``dontAsk``), since there is no one to ask.
2. No settings file, CLAUDE.md, skill, command or MCP server of the machine or of the working directory is read unless
   ``settingSources`` includes it: a directory may be an untrusted repository whose settings enable tools.
3. Prompts are taken verbatim (``verbatim_prompts``): no ``@path`` is read, no ``/command`` is run.
4. The environment is that of `Program.environment`.
"""

from __future__ import annotations

from claude_agent_sdk import ClaudeAgentOptions

from relay_supervisor.adapters.claude_code.config import AgentConfig
from relay_supervisor.adapters.claude_code.program import Program
from relay_supervisor.adapters.claude_code.prompt import INSTRUCTIONS

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest message of the program that is read; the SDK's default is 1 MB."""


def make_options(config: AgentConfig, program: Program, *, max_turns: int, resume: str | None) -> ClaudeAgentOptions:
    """Return the SDK's options for one run of the program."""
    isolated = not config.setting_sources
    append = INSTRUCTIONS if config.system_prompt is None else f"{INSTRUCTIONS}\n\n{config.system_prompt}"
    return ClaudeAgentOptions(
        cli_path=program.script,
        cwd=config.cwd,
        env=program.environment({name: secret.reveal() for name, secret in config.env.items()}),
        system_prompt={"type": "preset", "preset": "claude_code", "append": append},
        model=config.model,
        permission_mode=config.permission_mode,
        tools=_find_tools(config),
        allowed_tools=list(config.allowed_tools),
        disallowed_tools=list(config.disallowed_tools),
        setting_sources=list(config.setting_sources),
        strict_mcp_config=isolated,
        skills=[] if isolated else None,
        extra_args={"disable-slash-commands": None} if isolated else {},
        verbatim_prompts=True,
        max_turns=max_turns,
        resume=resume,
        max_buffer_size=MAX_LINE_BYTES,
        stderr=lambda line: None,  # dropped: it may quote anything, and the SDK would copy it to ours
    )


def _find_tools(config: AgentConfig) -> list[str] | None:
    if config.tools is not None:
        return list(config.tools)
    if config.dangerously_skip_permissions:
        return None  # all tools
    names = (rule.partition("(")[0] for rule in config.allowed_tools)
    return list(dict.fromkeys(name for name in names if not name.startswith("mcp__")))
