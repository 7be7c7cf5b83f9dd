"""What may be said on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from txfiles import __version__
from txfiles._cli import look, put, remote, sync
from txfiles._disk.allowance import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from txfiles._cli.answer import Answer

_EXIT_CODES = """\
exit codes:
  0  done
  1  failed
  2  the command line is wrong
  3  recovery is needed, or a decision: somebody changed files since a crash
  4  another writer held the lock for too long
  5  status, verify, recover, checkpoint: the directory is not a txfiles root
  130  interrupted with Ctrl-C; nothing was left half done
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said; its `run` is the command, which returns an `Answer`. Exits with 2 for what may not be said."""
    options, rest = parser().parse_known_args(arguments)
    if rest and (options.run is not put.run or any(word.startswith("-") for word in rest)):
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # files behind an option
        options.files += rest
    return options


def parser() -> argparse.ArgumentParser:
    """What may be said."""
    parser = argparse.ArgumentParser(
        prog="txfiles",
        description="Changes to several files, all-or-nothing.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"txfiles {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = _command(commands, "status", look.run_status, "show what is pending in DIR; changes nothing")
    command.add_argument("dir", metavar="DIR")

    command = _command(commands, "recover", look.run_recover, "finish or undo what a crash left in DIR")
    command.add_argument("dir", metavar="DIR")
    _timeout(command)
    _follow_links(command)
    _accept(command)
    command.add_argument("--dry-run", action="store_true", help="say what is pending and change nothing")
    command.add_argument(
        "--id", metavar="ID", help="on object storage: whether this transaction was committed, for good"
    )
    _on_conflict(
        command,
        {
            "keep-theirs": "where somebody changed a file since the crash, keep theirs and finish the rest",
            "roll-forward": "finish the transaction, over their changes",
            "roll-back": "undo the transaction, keep their changes",
        },
    )

    command = _command(
        commands, "decide", look.run_decide, "commit or roll back a transaction of DIR that was prepared"
    )
    command.add_argument("dir", metavar="DIR")
    command.add_argument("id", metavar="ID", help="as txfiles status shows it")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--commit", action="store_true", help="make its changes")
    which.add_argument("--rollback", action="store_true", help="forget them")
    _timeout(command)
    _follow_links(command)
    _accept(command)
    _on_conflict(
        command,
        {
            "keep-theirs": "with --commit: where somebody changed a file since, keep theirs and commit the rest",
            "roll-forward": "with --commit: over their changes",
        },
    )

    command = _command(
        commands, "verify", look.run_verify, "check the private directory and the journals of DIR; read-only"
    )
    command.add_argument("dir", metavar="DIR")
    _follow_links(command)

    command = _command(
        commands, "checkpoint", look.run_checkpoint, "empty the log of --durability journal; every file is durable then"
    )
    command.add_argument("dir", metavar="DIR")
    command.add_argument(
        "--remove-log", action="store_true", help="do without a log, so that older versions can use DIR again"
    )
    _timeout(command)
    _follow_links(command)
    _accept(command)

    command = _command(commands, "put", put.run, "replace several files of DIR at once")
    command.add_argument("dir", metavar="DIR")
    command.add_argument("files", metavar="NAME=FILE", nargs="*", help="FILE may be - for the standard input, once")
    command.add_argument(
        "--file",
        dest="pairs",
        action="append",
        nargs=2,
        default=[],
        metavar=("NAME", "FILE"),
        help="the same in two words, where NAME or FILE has an = in it; may be repeated",
    )
    command.add_argument(
        "--files-from",
        metavar="LIST",
        help="read NAME and FILE from LIST (- for the standard input), a NUL after each of them",
    )
    _follow_links(command)
    _writing(command)

    command = _command(commands, "sync", sync.run, "make the files of DIR equal to those of SRC, in one transaction")
    command.add_argument("src", metavar="SRC")
    command.add_argument("dir", metavar="DIR")
    command.add_argument("--delete", action="store_true", help="delete what DIR has and SRC has not")
    command.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave alone what matches, whole or in a part of its path: /x only at the top, x/ only directories;"
        " may be repeated",
    )
    command.add_argument("-l", "--links", action="store_true", help="copy symbolic links as links, do not follow them")
    command.add_argument(
        "--no-perms", dest="perms", action="store_false", help="contents only: leave modes as they are in DIR"
    )
    command.add_argument("-t", "--times", action="store_true", help="keep the modification times of files")
    command.add_argument(
        "-c", "--checksum", action="store_true", help="compare contents also where size and time are equal"
    )
    _writing(command)

    command = _command(commands, "gc", remote.run_gc, "delete objects on object storage that nothing refers to")
    command.add_argument("url", metavar="URL")
    command.add_argument(
        "--grace-commits",
        type=_number,
        default=1000,
        metavar="N",
        help="leave what the last N commits may have needed (1000)",
    )
    command.add_argument(
        "--grace-seconds",
        type=_seconds,
        default=86400.0,
        metavar="SECONDS",
        help="leave it for so long at least (a day); snapshots that are older may expire",
    )

    command = _command(
        commands, "compact", remote.run_compact, "write what is left of packs that are mostly garbage anew"
    )
    command.add_argument("url", metavar="URL")
    command.add_argument(
        "--dead", type=_part, default=0.5, metavar="PART", help="packs of which this part is garbage (0.5), or more"
    )
    _timeout(command)

    command = _command(commands, "tag", remote.run_tag, "keep the newest state on object storage, or list the tags")
    command.add_argument("url", metavar="URL")
    command.add_argument("name", metavar="NAME", nargs="?")
    command.add_argument("-d", "--delete", action="store_true", help="let the state with this tag go")
    _timeout(command)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Answer], text: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, errors included")
    command.set_defaults(run=run, parser=command)
    return command


def _on_conflict(command: argparse.ArgumentParser, choices: dict[str, str]) -> None:
    decision = command.add_mutually_exclusive_group()
    for value, text in choices.items():
        decision.add_argument(f"--{value}", dest="decision", action="store_const", const=value, help=text)
    command.set_defaults(decision="raise")


def _timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="how long to wait for another writer (10)"
    )


def _follow_links(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--follow-links",
        dest="out",
        action="store_const",
        const="follow",
        default="refuse",
        help="follow links that lead out of DIR, to files of the same mount",
    )


def _writing(command: argparse.ArgumentParser) -> None:
    _timeout(command)
    how_much = command.add_mutually_exclusive_group()
    how_much.add_argument("-v", "--verbose", action="store_true", help="print the path of every file, too")
    how_much.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    command.add_argument("-n", "--dry-run", action="store_true", help="say what would be done and change nothing")
    command.add_argument("--create", action="store_true", help="make DIR if it is missing")
    command.add_argument(
        "--durability",
        choices=("full", "journal", "process"),
        default="full",
        help="full: safe against power loss; journal: the same, faster, but other programs may see old or empty files"
        " between a power loss and the next recovery; process: safe only against the death of the process",
    )
    _accept(command)


def _accept(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--accept",
        action="append",
        choices=NAMES,
        default=[],
        help="what the place may fail to give, else an error; may be repeated",
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError("a number, 0 or more")
    return int(text)


def _part(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("a part of one, more than 0 and at most 1")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds, 0 or more")
    return value
