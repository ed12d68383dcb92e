# `make help` lists the targets. `make demo` needs Go only; `make test` brings
# what the tests need.

SHELL := /bin/bash
.DEFAULT_GOAL := help

GO           ?= go
PKG          ?= ./...
BENCH        ?= .
RUN          ?= .*
ROUNDS       ?= 5
FUZZTIME     ?= 10s
TEST_TIMEOUT ?= 20m

# Tests behind `server` start real servers and processes; those behind `accept`
# as well are live runs of minutes.
TAGS := server
LINT := bin/golangci-lint

# Without cgo the product is one static file, and neither building it nor the
# quick tests need a C compiler. The race detector does (see .ci/setup). All
# else is built one way, so that a new machine compiles everything twice and not
# five times.
STATIC := CGO_ENABLED=0

# The race detector watches everything but the Lua interpreter of the Redis that
# tests in virtual time run in process: it shares nothing, and is a fifth of
# their work.
RACE := CGO_ENABLED=1 $(GO) test -race -gcflags='github.com/yuin/gopher-lua/...=-race=false -d=checkptr=0'

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Use

.PHONY: demo
demo: ## the whole product in one process, on real documents; about 20 seconds; needs Go only
	@echo "compiling: up to two minutes on a new machine; the demo itself takes about 20 seconds"
	@mkdir -p bin
	@set -o pipefail; $(STATIC) $(GO) build -v -o bin/leeway ./cmd/leeway 2>&1 | \
		awk '/^[^ :]+$$/ { if (++n % 20 == 0) { print "  " n " packages compiled"; fflush() } next } { print }'
	@bin/leeway demo

NAME ?= declared
ARGS ?=

.PHONY: drill
drill: ## a drill in one process, with its report in bin/drill-NAME.html (NAME=burst ARGS=--simulate); exit 1 if a threshold does not hold
	@mkdir -p bin
	$(STATIC) $(GO) run ./cmd/leeway drill $(NAME) --html bin/drill-$(NAME).html --json bin/drill-$(NAME).json $(ARGS)

.PHONY: pictures
pictures: setup ## the pictures of drills in docs/pictures, by chromium
	@mkdir -p bin/chromium
	for name in free-slow flap; do \
		$(STATIC) $(GO) run ./cmd/leeway drill $$name --simulate --html bin/drill-$$name.html >bin/drill-$$name.txt && \
		chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run \
			--user-data-dir=$(CURDIR)/bin/chromium --window-size=1040,2640 \
			--screenshot=docs/pictures/drill-$$name.png file://$(CURDIR)/bin/drill-$$name.html 2>bin/chromium.log || exit; \
	done

.PHONY: build
build: ## static binaries into bin/
	$(STATIC) $(GO) build -o bin/ ./cmd/...

##@ Test

.PHONY: quick
quick: ## the tests that need no server, in seconds; needs Go only
	$(STATIC) $(GO) test $(PKG)

# The processes of e2e live by the clock: their tests come last and alone, when
# no compiler and no other test takes their time.
.PHONY: test
test: setup ## every test, with the race detector and real servers; installs what it needs, or says what to install
	@packages() { $(GO) list -tags $(TAGS) $(PKG) | grep "$$@" '/e2e$$'; }; \
	for some in "$$(packages -v)" "$$(packages)"; do \
		[ -z "$$some" ] || $(RACE) -tags $(TAGS) -count=1 -timeout $(TEST_TIMEOUT) $$some || exit; \
	done

.PHONY: setup
setup: ## install the Debian packages that `make test` needs and this machine lacks
	@.ci/setup

.PHONY: accept
accept: setup ## the long live runs, several minutes each
	CGO_ENABLED=1 $(GO) test -tags '$(TAGS) accept' -run Accept -count=1 -timeout 60m -v $(PKG)

CHAOS_SEED   ?= $(shell date +%s)
CHAOS_FOR    ?= 3m
CHAOS_RATE   ?= 10
CHAOS_SHARDS ?= 1

.PHONY: chaos
chaos: setup ## real processes under random faults for CHAOS_FOR (3m), then the balance; again with CHAOS_SEED=n (CHAOS_SHARDS=2)
	$(RACE) -c -tags '$(TAGS)' -o bin/chaos.test ./e2e
	cd e2e && ../bin/chaos.test -test.run '^TestChaos$$' -test.v -test.timeout 2h \
		-chaos.seed $(CHAOS_SEED) -chaos.for $(CHAOS_FOR) -chaos.rate $(CHAOS_RATE) -chaos.shards $(CHAOS_SHARDS)

.PHONY: soak
soak: CHAOS_FOR := 30m
soak: chaos ## the same for thirty minutes

.PHONY: bench
bench: setup ## ratios against a bare enqueue and against echo alone, on a real Redis, some minutes (JSON=file RUN=admission ROUNDS=7)
	cd rehearsal/bench && $(STATIC) $(GO) test -tags bench -count=1 -timeout 30m -run 'TestBench/^($(RUN))$$' -rounds $(ROUNDS) $(if $(JSON),-report $(abspath $(JSON)))

JOBS ?= 1000000

.PHONY: many
many: setup ## a million jobs through one Redis to their end (JOBS=n): the rate from first to last, and what is left of them; some ten minutes
	cd rehearsal/bench && $(STATIC) $(GO) test -tags bench -count=1 -timeout 60m -run '^TestMany$$' -v -jobs $(JOBS)

.PHONY: bench-check
bench-check: setup ## the cheap ones of them against their floors, by ratio; about a minute
	cd rehearsal/bench && $(STATIC) $(GO) test -tags bench -count=1 -run 'TestBench/^(decision|admission|reject|memory|life|start)$$' -rounds 3 -slice 300ms -floors floors.json

.PHONY: microbench
microbench: ## every Go benchmark with its allocations (BENCH=regexp PKG=./slackgate/...)
	$(STATIC) $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s) each
	tools/fuzz $(FUZZTIME) $(PKG)

##@ Check

.PHONY: lint
lint: lint-fmt lint-vet lint-mod lint-golangci lint-walls ## everything CI checks besides the tests

.PHONY: lint-fmt
lint-fmt: ## gofmt leaves nothing to do
	@unformatted=$$(gofmt -s -l .) || exit; \
	if [ -n "$$unformatted" ]; then echo "gofmt -s -w these:"; echo "$$unformatted"; exit 1; fi

.PHONY: lint-vet
lint-vet: ## go vet, without and with the build tags of the tests
	$(STATIC) $(GO) vet ./...
	$(STATIC) $(GO) vet -tags '$(TAGS) accept bench' ./...
	$(STATIC) $(GO) vet -tags '$(TAGS) faultpoints' ./...
	cd tools/compose && $(STATIC) $(GO) vet ./...

.PHONY: lint-mod
lint-mod: ## go.mod and go.sum say what is used, no more and no less
	$(GO) mod tidy -diff

.PHONY: lint-golangci
lint-golangci: $(LINT) ## the linters of .golangci.yaml
	$(STATIC) $(LINT) run ./...

.PHONY: lint-walls
lint-walls: $(LINT) ## the import walls of .golangci.yaml refuse what they should
	tools/walls $(LINT)

# Built from source at the version in tools/go.mod: some minutes the first time.
$(LINT): tools/go.mod tools/go.sum
	cd tools && GOBIN=$(CURDIR)/bin GOFLAGS= GOOS= GOARCH= $(GO) install tool
	@touch $@

.PHONY: vuln
vuln: ## known vulnerabilities in what is used; reads the Go vulnerability database from the network
	$(STATIC) $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin
