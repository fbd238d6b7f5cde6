from natgrad.cli import main

raise SystemExit(main())
