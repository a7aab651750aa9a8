# Two commands: `make up` runs a database, `make test` runs every test. Both install what they need
# (Debian packages; as an ordinary user they say what to install instead).
SHELL := /bin/bash
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)
export CARGO_TARGET_DIR ?= $(CACHE)/strandline/target
PROFILE_DIR := $(CARGO_TARGET_DIR)/release

.PHONY: up build test unit layers deps-run deps-test help

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

up: build ## start a database here in the foreground; ARGS="--listen 127.0.0.1:6000" and so on
	exec $(PROFILE_DIR)/strandline up $(ARGS)

build: deps-run ## build the binary and the page shim
	cargo build --release --locked --package strandline --package strandline-shim

test: deps-test ## every test
	scripts/test

deps-run:
	@scripts/dependencies run

deps-test:
	@scripts/dependencies test
