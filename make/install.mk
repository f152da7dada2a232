# Targets: install, uninstall.

PREFIX  ?= /usr/local
DESTDIR ?=

install: all ## programs, man page, completion for bash: into PREFIX (/usr/local), under DESTDIR
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh $(BIN)

uninstall: ## what `make install` put there
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh --uninstall
