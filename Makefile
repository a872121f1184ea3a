# remuda: `make help` lists every target.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := bin
TOOLS := .tools/bin
# How long each part of make soak goes on.
SOAK ?= 1h
# How long make fuzz goes on with each target.
FUZZ ?= 20s
# Traces for make bench, separated by commas.
TRACES ?=
# What the end-to-end tests run.
export REMUDA_BIN := $(CURDIR)/$(BIN)
export REMUDA_TOOLS := $(CURDIR)/$(TOOLS)
# go-nvml is cgo and warns about its own header. It looks NVML's symbols up when
# they are first called, so the linker must not ask for them at the start.
export CGO_CFLAGS ?= -Wno-deprecated-declarations

.PHONY: help dev test verify unit lint fuzz e2e soak bench reference gpu-check build tools nomad-pack ollama prometheus chromium dashboards demo debian-root clients peers release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build remuda, remuda-device and remuda-autoscaler into bin/
	@mkdir -p $(BIN)
	go build -ldflags '-extldflags=-Wl,-z,lazy' -o $(BIN)/ ./cmd/...

tools: ## Build the pinned Nomad, Consul and nomad-autoscaler into .tools/bin
	@tools/build nomad consul nomad-autoscaler

nomad-pack: ## Build the pinned nomad-pack into .tools/bin
	@tools/build nomad-pack

ollama: ## Build the pinned Ollama (a real engine for any CPU) into .tools/bin
	@tools/build ollama

prometheus: ## Unpack Debian's Prometheus into .tools
	@tools/debian prometheus

chromium: ## Unpack Debian's Chromium into .tools, for tests of the web page
	@tools/debian chromium

dashboards: ## Write the Grafana dashboards of jobs/monitoring
	cd tools/monitoring && go run . ../../jobs/monitoring/dashboards

demo: build tools ## Record docs/demo.svg, which the README shows
	go run ./tools/demo -remuda $(BIN)/remuda -out docs/demo.svg

debian-root: ## Make a root directory of Debian 12 in .tools, as root, for the test of the packages
	@tools/debian-root

clients: ## Install the client libraries of e2e/clients, Node.js for them and axe-core, with npm into .tools
	@tools/clients

dev: build ## Run a complete local cluster in the foreground (Ctrl-C ends it)
	@$(BIN)/remuda dev $(DEV_FLAGS)

test: lint unit e2e ## Everything once: linter, unit tests with the race detector, end to end

verify: lint ## Everything many times, with production timeouts: 100 minutes
	REMUDA_LONG=1 $(MAKE) --no-print-directory unit
	REMUDA_LONG=1 go test -vet=off -timeout 60m -run '^TestRandomRequests$$' ./controller/gateway
	cd tools/policystudy && go vet ./... && go test ./...
	cd tools/release && go vet ./... && go test ./...
	$(MAKE) --no-print-directory fuzz
	REMUDA_LONG=1 $(MAKE) --no-print-directory e2e TAGS=e2e,verify E2E_NEEDS="ollama debian-root" E2E="./lockd/torture ./lockd/engine/dialect ./e2e"

# The race detector finds nothing where there is one goroutine, and costs a multiple of the time: up to 15
# times in controller/state. Of that package and of controller/usage only the tests with several goroutines run
# under it. For the same reason verify makes a million random requests without it; the million commands and plans
# are in plain packages.
# A process under the race detector sleeps at its end for a second, lest it miss what other goroutines are about to
# do; tests wait for theirs.
# Most tests wait more than they work: more packages than CPUs run at once. With those that are prompt, timeouts
# would end before a test gets its turn.
unit: export GORACE := atexit_sleep_ms=20
unit: build prometheus chromium clients ## Unit tests, under the race detector where there are goroutines
	go test -vet=off -timeout 60m -p $$(( 2 * $$(nproc) )) $$(tools/packages plain)
	go test -vet=off -timeout 30m -p $$(( 2 * $$(nproc) )) -race $$(tools/packages race)
	go test -vet=off -timeout 30m -p $$(nproc) -race $$(tools/packages prompt)
	go test -vet=off -timeout 30m -race -run '^Test(ForkAndStore|BlockingQueries|PaceOfCommits)$$' ./controller/state ./controller/usage
	cd tools/monitoring && go vet ./... && go test ./...

lint: ## golangci-lint with .golangci.yml, dead code, the table of promises
	@tools/build golangci-lint
	$(TOOLS)/golangci-lint run --build-tags e2e,verify ./...
	@tools/lint-dead
	@tools/lint-promises

reference: build ## Write docs/reference and openapi.json
	go test -vet=off -run '^TestReference' $$(grep -rl --include=*_test.go '"remuda/internal/testkit/reference"' . | xargs -n 1 dirname | sort -u) ./internal/testkit/reference -update

fuzz: ## Fuzz every target for FUZZ=20s
	@tools/fuzz $(FUZZ)

TAGS ?= e2e
E2E_NEEDS ?=
E2E ?= ./lockd/torture ./e2e

e2e: build tools nomad-pack prometheus chromium clients $(E2E_NEEDS) ## End-to-end tests on real Nomad, Consul, nomad-autoscaler and Prometheus, with real client libraries
	REMUDA_OLLAMA=$(CURDIR)/$(TOOLS)/ollama go test -tags $(TAGS) -count 1 -p 1 -parallel 3 -timeout 80m $(E2E)

peers: ## Unpack nginx and HAProxy from Debian into .tools, for make bench
	@tools/peers

soak: build tools ## Torture lockd, and give random orders to pairs, for SOAK=1h each
	REMUDA_SOAK=$(SOAK) go test -tags e2e -count 1 -timeout 0 -v -run NeverTwo ./lockd/torture
	REMUDA_SOAK=$(SOAK) go test -tags e2e -count 1 -timeout 0 -v -run 'TestTwoPairsOnOneGPU$$/random' ./e2e

bench: build tools peers ## Benchmarks: gateway against a ReverseProxy, nginx and HAProxy, failover against flock and Consul, shared memory against files, controller, placement, tiers, scaling policies
	go test ./controller/gateway -run '^$$' -bench Gateway -benchtime 1x -timeout 30m
	go test ./controller/gateway -run '^$$' -bench Prefix -benchtime 1x -timeout 30m
	go test ./controller/gateway/upstream -run '^$$' -bench . -benchtime 2s
	go test ./autoscaler-plugin/capacity ./autoscaler-plugin/enginemetrics ./autoscaler-plugin/hpa ./autoscaler-plugin/plugin ./autoscaler-plugin/observe -run '^$$' -bench . -benchtime 2s
	@if [ -n "$(TRACES)" ]; then \
		cd tools/policystudy && for phase in train test report; do \
			go run . -trace "$(TRACES)" -phase $$phase -dir $(CURDIR)/policy-study -parallel $$(nproc) || exit 1; \
		done; \
	else \
		echo "make bench TRACES=/FILE,/FILE compares the scaling policies on traces, too (hours): docs/benchmarks.md"; \
	fi
	go test ./lockd -run '^$$' -bench Failover -benchtime 1x -timeout 30m
	go test -tags e2e ./e2e -run '^$$' -bench PairFailover -benchtime 50x -timeout 2h
	go test ./device-plugin/gms/client -run '^$$' -bench Import -benchtime 3x -timeout 30m
	go test ./device-plugin/gms/client -run '^$$' -bench 'Metadata|Session' -benchtime 5s
	go test -tags e2e ./e2e -run '^$$' -bench PairMemory -benchtime 1x
	go test -tags e2e ./e2e -run '^$$' -bench IdleNode -benchtime 1x -timeout 20m
	go test ./controller/raft -run '^$$' -bench Placements -benchtime 3s
	go test ./controller/raft ./controller/state -run '^$$' -bench 'Snapshot|ReplicaDay|ApplyPlace' -benchtime 1x
	go test ./controller/planner ./controller/server -run '^$$' -bench . -benchtime 3s
	go test ./controller/placement -cpu 1 -run '^$$' -bench . -benchtime 1s -timeout 30m
	go test -tags e2e ./e2e -run '^$$' -bench 'ScaleToHot|WakeToHot|Ladder' -benchtime 1x -timeout 1h

gpu-check: ## Bundle the checks for a machine with a GPU into bin/gpu-check.tar.gz
	@tools/gpu-check

VERSION ?=
SIGN ?=

release: ## Build zips, deb and rpm packages, SBOMs and SHA256SUMS for linux amd64 and arm64 into dist/ (VERSION=, SIGN=gpg key)
	@tools/debian aarch64-linux-gnu-gcc
	@PATH=$(CURDIR)/$(TOOLS):$$PATH go -C tools/release run . -root $(CURDIR) -version '$(VERSION)' -sign '$(SIGN)'

clean: ## Remove what was built (the tools stay cached by Go)
	rm -rf $(BIN) dist .tools
