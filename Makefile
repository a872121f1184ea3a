# remuda: `make help` lists every target.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := bin
TOOLS := .tools/bin
PACKAGES := ./...
# How long make soak goes on.
SOAK ?= 1h
# How long make fuzz goes on with each target.
FUZZ ?= 20s
# A folder with traces, for make bench.
TRACES ?=
# go-nvml is cgo and warns about its own header. It looks NVML's symbols up when
# they are first called, so the linker must not ask for them at the start.
export CGO_CFLAGS ?= -Wno-deprecated-declarations

.PHONY: help dev test unit race vet lint fuzz e2e e2e-tools soak bench gpu-check build tools ollama peers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build remuda, remuda-device, remuda-autoscaler and gpu-check into bin/
	@mkdir -p $(BIN)
	go build -ldflags '-extldflags=-Wl,-z,lazy' -o $(BIN)/ ./cmd/...

tools: ## Build the pinned Nomad, Consul and nomad-autoscaler into .tools/bin
	@tools/build nomad consul nomad-autoscaler

ollama: ## Build the pinned Ollama (a real engine for any CPU) into .tools/bin
	@tools/build ollama

e2e-tools: ## Build nomad-autoscaler 0.4.7 and unpack Debian's Prometheus into .tools, for make e2e
	@tools/build nomad-autoscaler-0.4.7
	@tools/debian prometheus

dev: tools build ## Run a complete local cluster in the foreground (Ctrl-C ends it)
	@$(BIN)/remuda dev $(DEV_FLAGS)

test: lint unit race fuzz e2e ## Everything: linter, unit tests, race detector, fuzzing, end to end

# Tests wait more than they work: more packages than CPUs run at a time. What vet finds
# is of make lint; of some tests the long form (without -short) runs in make race only.
unit: ## Unit tests
	go test -short -p $$(( 2 * $$(nproc) )) -vet=off $(PACKAGES)

race: ## Unit tests under the race detector
	go test -race $(PACKAGES)

vet: ## go vet
	go vet $(PACKAGES)
	go vet -tags e2e $(PACKAGES)

lint: vet ## go vet and golangci-lint with .golangci.yml
	@tools/build golangci-lint
	$(TOOLS)/golangci-lint run --build-tags e2e $(PACKAGES)

fuzz: ## Fuzz what reads bytes of others: frames, commands, snapshots, model files; FUZZ=20s each
	@fuzz() { echo "fuzzing $$2 in $$1"; go test $$1 -run '^$$' -fuzz "^$$2\$$" -fuzztime $(FUZZ) -fuzzminimizetime 10x; }; \
	fuzz ./device-plugin/gms/wire FuzzReadFrame; \
	fuzz ./device-plugin/gms/wire FuzzDecode; \
	fuzz ./device-plugin/gms/layout FuzzMachine; \
	fuzz ./controller/state FuzzApply; \
	fuzz ./controller/state FuzzRestore; \
	fuzz ./controller/modelfile FuzzParse; \
	fuzz ./controller/calendar FuzzCalendar; \
	fuzz ./controller/pipeline FuzzPipeline; \
	fuzz ./controller/gateway/modelscan FuzzScan; \
	fuzz ./controller/gateway/continuation FuzzStream; \
	fuzz ./controller/gateway FuzzRequest; \
	fuzz ./controller/gateway/upstream FuzzAnswer; \
	fuzz ./controller/gateway/accesslog FuzzText; \
	fuzz ./autoscaler-plugin/capacity FuzzDecode; \
	fuzz ./autoscaler-plugin/capacity FuzzAnalyze; \
	fuzz ./autoscaler-plugin/hpa FuzzReplay; \
	fuzz ./autoscaler-plugin/metrics FuzzParse; \
	fuzz ./autoscaler-plugin/metrics FuzzAnswers; \
	fuzz ./autoscaler-plugin/utilization FuzzWeekJSON; \
	fuzz ./autoscaler-plugin/utilization FuzzParseConfig; \
	fuzz ./autoscaler-plugin/optimizer FuzzOptimize; \
	fuzz ./internal/scalesim FuzzReadRequests; \
	fuzz ./internal/scalesim FuzzReadServeGen

e2e: tools e2e-tools ollama build ## End-to-end tests on real Nomad, Consul, nomad-autoscaler, Prometheus and Ollama
	REMUDA_BIN=$(CURDIR)/$(BIN) REMUDA_TOOLS=$(CURDIR)/$(TOOLS) REMUDA_OLLAMA=$(CURDIR)/$(TOOLS)/ollama \
		go test -tags e2e -count 1 -p 1 -timeout 65m ./e2e/... ./lockd/engine/dialect/... ./lockd/torture/...
	go test -tags e2e -count 1 -timeout 10m -run 'TestBundle$$' ./internal/gpucheck

peers: ## Unpack nginx and HAProxy from Debian into .tools, for make bench
	@tools/peers

soak: ## Torture lockd for SOAK=1h
	REMUDA_SOAK=$(SOAK) go test -tags e2e -count 1 -timeout 0 -v -run NeverTwo ./lockd/torture

bench: build tools peers ## Benchmarks: gateway against a ReverseProxy, nginx and HAProxy, failover against flock and Consul, shared memory against files, controller, placement, tiers, scaling policies
	go test ./controller/gateway -run '^$$' -bench Gateway -benchtime 1x -timeout 30m
	go test ./controller/gateway/upstream -run '^$$' -bench . -benchtime 2s
	go test ./autoscaler-plugin/capacity ./autoscaler-plugin/metrics ./autoscaler-plugin/hpa ./autoscaler-plugin/strategy ./autoscaler-plugin/observe/engines -run '^$$' -bench . -benchtime 2s
	@if [ -n "$(TRACES)" ]; then \
		go run ./internal/scalesim/cmd/policystudy -traces "$(TRACES)" -dir policy-study -parallel $$(nproc); \
	else \
		echo "make bench TRACES=DIR compares the scaling policies on traces, too (hours); DIR has azure-llm-2023-conv.csv and servegen-m-small-traces.tar.gz"; \
	fi
	REMUDA_TOOLS=$(CURDIR)/$(TOOLS) go test ./lockd -run '^$$' -bench Failover -benchtime 1x -timeout 30m
	REMUDA_FAILOVER_KILLS=200 REMUDA_BIN=$(CURDIR)/$(BIN) REMUDA_TOOLS=$(CURDIR)/$(TOOLS) go test -tags e2e -count 1 -v -timeout 60m -run 'TestFailover$$' ./e2e
	go test ./device-plugin/gms/client -run '^$$' -bench Import -benchtime 3x -timeout 30m
	go test ./device-plugin/gms/client -run '^$$' -bench 'Metadata|Session' -benchtime 5s
	REMUDA_BIN=$(CURDIR)/$(BIN) go test -tags e2e ./e2e -run '^$$' -bench PairMemory -benchtime 1x
	go test ./controller/raft -run '^$$' -bench Placements -benchtime 3s
	go test ./controller/raft ./controller/state -run '^$$' -bench 'Snapshot|ReplicaDay|ApplyPlace' -benchtime 1x
	go test ./controller/planner ./controller/server -run '^$$' -bench . -benchtime 3s
	go test ./controller/placement -cpu 1 -run '^$$' -bench . -benchtime 1s -timeout 30m
	REMUDA_BIN=$(CURDIR)/$(BIN) REMUDA_TOOLS=$(CURDIR)/$(TOOLS) go test -tags e2e ./e2e -run '^$$' -bench 'ScaleToHot|WakeToHot' -benchtime 1x -timeout 40m

gpu-check: ## Bundle the checks for a machine with a GPU into bin/gpu-check.tar.gz
	@tools/gpu-check

clean: ## Remove what was built (the tools stay cached by Go)
	rm -rf $(BIN) .tools
