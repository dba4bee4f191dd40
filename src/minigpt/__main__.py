"""``python -m minigpt`` is the ``minigpt`` command."""

from minigpt.cli import main

raise SystemExit(main())
