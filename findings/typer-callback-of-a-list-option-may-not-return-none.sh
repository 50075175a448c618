#!/usr/bin/env bash
# typer 0.19.0 and 0.19.2 (PyPI), click 8.1.8, Python 3.11, Debian 12.
# Behaviour: an option of type `list[str] | None` with the default None has a callback that returns
# its argument. Without the option on the command line, typer 0.19.0 (and 0.12.5 to 0.17.4) passes
# None to the callback, then takes the length of what the callback returns. typer 0.19.2 runs the
# command. So a callback of a list option must return a list on all of these versions.
# Output seen:
#   0.19.0: TypeError: object of type 'NoneType' has no len()
#   0.19.2: names: None
#   0.19.0, the callback returns a list: names: None
# Exits 1 if any of the lines changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
cat >"$here/program.py" <<'PROGRAM'
import sys
from typing import Annotated, Optional

import typer

as_list = len(sys.argv) > 1 and sys.argv.pop() == "as-list"


def callback(value):
    return (value or []) if as_list else value


def main(names: Annotated[Optional[list[str]], typer.Option(callback=callback)] = None) -> None:
    print("names:", names)


typer.run(main)
PROGRAM
run() { # VERSION WORD...
  "$here/venv/bin/pip" install -q "typer==$1" click==8.1.8
  "$here/venv/bin/python" "$here/program.py" "${@:2}" 2>&1 | tail -n 1 || true
}
old=$(run 0.19.0); listed=$(run 0.19.0 as-list); new=$(run 0.19.2)
echo "0.19.0: $old"; echo "0.19.2: $new"; echo "0.19.0, the callback returns a list: $listed"
[ "$old" = "TypeError: object of type 'NoneType' has no len()" ] && [ "$new" = "names: None" ] &&
  [ "$listed" = "names: None" ]
