# Recipes for people. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
RESULTS ?= results
TRUTH_SEEDS ?= 2
TRUTH_JOBS ?= 6
REFERENCE_SEEDS ?= 3
NS3_SEEDS ?= 5
ATTACK_SECONDS ?= $(if $(SHORT),10,600)
FUZZ_SECONDS ?= $(if $(SHORT),1,60)
FLOOD_RATE ?= 50000
FLOOD_SECONDS ?= 60
SURVIVAL_DEATHS ?= 200
SCALE_FLOWS ?= 100000
SCALE_PEERS ?= 1000

# SHORT=1 gives the shortest faithful form of a recipe: whether it runs, not what it finds. The programs
# are then those that the tests use, unoptimised, so that nothing is built for this alone.
TARGET := $(or $(CARGO_TARGET_DIR),target)
TESTED := --workspace --all-features --locked
PROGRAMS := $(TARGET)/$(if $(SHORT),debug,release)
BUILD := $(if $(SHORT),test $(TESTED) --no-run --quiet,build --release --locked --bin midhop --bin midhopd)
BENCH := $(if $(SHORT),test $(TESTED),bench --locked)
SHORT_FLAG := $(if $(SHORT),--short)
# EMULATED=GIB runs what a recipe tests on an emulated machine with so much memory, by Debian's own kernel
# (scripts/machine): `make routers EMULATED=4`, `make scale EMULATED=8`.
RUNNER = $(if $(EMULATED),CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER="$(CURDIR)/scripts/machine -m $(EMULATED)")
SHORT_MATRIX := --set congestion=cubic --set link=clean --set rtt=50ms --set transfers.download.flows=1 \
  --set transfers.download.seconds=3 --set duration=6s

.PHONY: help prepare build demo dist dist-twice test test-kernel check format lint tidy deny vet docs bpf fuzz attack flood scale bench-survival routers bench-relay bench-sim bench-tcp bench-instructions formulas truth reference ns3 python book book-commands recipes clean

help: ## List the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prepare: ## Install what the system lacks (as root), or say what is missing
	@scripts/prepare build

build: prepare ## Build both programs, optimised; their symbols stand beside them
	$(CARGO) $(BUILD)
	@$(if $(SHORT),,scripts/symbols $(PROGRAMS)/midhop $(PROGRAMS)/midhopd)

demo: build ## The main job, simulated and then on this kernel: five minutes, a minute with QUICK=1
	@scripts/prepare run
	@$(PROGRAMS)/midhop demo $(if $(QUICK),--quick )$(if $(SHORT),--set load=page --set links.satellite.down.loss='0 %' --set 'transfers.page.objects=["50 kB"]' )--out $(RESULTS)/demo

dist: ## Debian packages, tarballs, bills of materials and checksums of both programs, for amd64 and arm64
	@scripts/prepare dist
	@$(if $(SHORT),$(CARGO) $(BUILD))
	@SHORT=$(SHORT) CARGO=$(CARGO) scripts/dist $(TARGET)/dist

dist-twice: ## The same in two folders of different names, compared byte for byte (PROFILE=dev is faster)
	@scripts/prepare dist
	@$(if $(SHORT),$(CARGO) $(BUILD))
	@SHORT=$(SHORT) CARGO=$(CARGO) scripts/dist-twice

test: prepare ## Every test: units, properties, vectors, namespaces end to end
	@scripts/prepare test
	@CARGO=$(CARGO) scripts/test --workspace --all-features --locked --no-fail-fast

test-kernel: ## Our TCP against this machine's kernel over lossy cables, hundreds of seeds
	$(if $(SHORT),MIDHOP_SEEDS=$${MIDHOP_SEEDS-100..104}) $(CARGO) test $(if $(SHORT),$(TESTED),--locked -p midhop-tcp) --test tcp -- --include-ignored --nocapture kernel::

check: format lint tidy deny vet test ## What CI runs, but for `make recipes`

format: ## Formatting as rustfmt.toml says
	$(CARGO) fmt --all -- --check

lint: prepare ## Clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings

tidy: ## Layers, file sizes, links, recipes, the record of dependencies
	$(CARGO) xtask tidy

deny: ## Licences and advisories of what we depend on (needs cargo-deny)
	@scripts/deny

vet: ## Whether each dependency is in the record of what we trust (supply-chain/)
	@scripts/vet

docs: ## Documentation of all crates, warnings are errors
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items --locked

bpf: ## Rebuild the BPF programs and compare them with those committed (needs clang)
	@crates/bpf/build-objects.sh || [ $$? = 77 ]

fuzz: prepare ## Fuzz every target for FUZZ_SECONDS each (needs cargo-fuzz)
	@SHORT=$(SHORT) scripts/fuzz $(FUZZ_SECONDS)

attack: prepare ## Everything hostile for ATTACK_SECONDS: all fuzz targets, then strangers and peers (as root)
	@SHORT=$(SHORT) CARGO=$(CARGO) scripts/attack $(ATTACK_SECONDS)

routers: ## Router set-ups with rules of their own, with midhopd and without, as a table (as root, minutes)
	@$(if $(SHORT),,scripts/prepare test)
	$(if $(SHORT),MIDHOP_ROUTERS=1) $(RUNNER) $(CARGO) test $(if $(SHORT),$(TESTED),--release --locked -p midhopd) --test midhopd -- --include-ignored routers::all_ --nocapture

flood: build ## SYN floods of FLOOD_RATE a second for FLOOD_SECONDS, and what others notice (as root)
	MIDHOPD=$(abspath $(PROGRAMS)/midhopd) MIDHOP_FLOOD_RATE=$(if $(SHORT),5000,$(FLOOD_RATE)) MIDHOP_FLOOD_SECONDS=$(if $(SHORT),3,$(FLOOD_SECONDS)) $(if $(SHORT),MIDHOP_FLOOD_KINDS=1) \
	  $(RUNNER) $(CARGO) test $(if $(SHORT),$(TESTED),--locked -p midhopd) --test midhopd -- --ignored --nocapture --exact floods::figures

scale: build ## SCALE_FLOWS idle flows, SCALE_PEERS peers: memory of each, and how late workers were (as root)
	MIDHOPD=$(abspath $(PROGRAMS)/midhopd) MIDHOP_SCALE_FLOWS=$(if $(SHORT),1000,$(SCALE_FLOWS)) MIDHOP_SCALE_PEERS=$(if $(SHORT),50,$(SCALE_PEERS)) \
	  $(RUNNER) $(CARGO) test $(if $(SHORT),$(TESTED),--locked -p midhopd) --test midhopd -- --ignored --nocapture --test-threads=1 --exact scale::figures many_peers::figures

bench-survival: build ## Kills the data plane SURVIVAL_DEATHS times under load, as often among flows of random size that end, and at each system call of a tunnel's ends, upgrades 1,000 flows, beside restarts of HAProxy and Envoy, and moves 1,000 flows to another machine: what is lost, and how long they wait (as root)
	@$(if $(SHORT),,scripts/prepare bench)
	MIDHOP_RECORDS=$(abspath $(RESULTS))/bench-survival$(if $(SHORT),-short) MIDHOPD=$(abspath $(PROGRAMS)/midhopd) MIDHOP_SURVIVAL_DEATHS=$(if $(SHORT),2,$(SURVIVAL_DEATHS)) $(if $(SHORT),MIDHOP_SURVIVAL_UPGRADES=2 MIDHOP_SURVIVAL_STEPS=2 MIDHOP_SURVIVAL_FLOWS=100 MIDHOP_SURVIVAL_LIMIT_S=1) \
	  $(RUNNER) $(CARGO) test $(if $(SHORT),$(TESTED),--locked -p midhopd) --test midhopd -- --ignored --nocapture --test-threads=1 --exact survival::figures survival_ends::figures upgrade::figures upgrade_peers::figures survival_tunnels_steps::figures relocation_figures::figures
	$(if $(SHORT),,MIDHOPD=$(abspath $(PROGRAMS)/midhopd) $(RUNNER) $(CARGO) test --locked -p midhopd --test midhopd -- --ignored --test-threads=1 survival_tunnels::)

bench-relay: build ## Gb/s, CPU and connections/s of HAProxy, Envoy and midhopd, and of pairs beside quic-go
	@$(if $(SHORT),,scripts/prepare bench)
	MIDHOPD=$(abspath $(PROGRAMS)/midhopd) ENVOY=$(CURDIR)/target/peers/bin/envoy \
	  $(CARGO) $(BENCH) $(if $(SHORT),,-p midhop-testbed) --bench relay -- $(SHORT_FLAG) --out $(abspath $(RESULTS))/bench-relay
	MIDHOPD=$(abspath $(PROGRAMS)/midhopd) $(CARGO) $(BENCH) $(if $(SHORT),,-p midhop-testbed) --bench relay -- $(SHORT_FLAG) \
	  --guard --loads handshakes,connections --relays direct,floor,held-floor,haproxy,midhopd,after-connect --out $(abspath $(RESULTS))/bench-relay-guard
	@$(if $(SHORT),MIDHOPD=$(abspath $(PROGRAMS)/midhopd) scripts/killed midhopd $(CARGO) $(BENCH) --bench relay -- --seconds 60 --relays midhopd-pair)

bench-sim: prepare ## Link-packets per CPU second and memory of the simulator, beside ns-3 (from PyPI)
	NS3_CHAIN="$(if $(SHORT),,$$(scripts/ns3 crates/sim/benches/ns3/chain.cc))" $(CARGO) $(BENCH) $(if $(SHORT),,-p midhop-sim) --bench speed -- $(SHORT_FLAG)

bench-instructions: ## Instructions of small pieces of work under valgrind, beside those counted before (WRITE=1 keeps them)
	$(if $(SHORT),$(CARGO) $(BENCH) --bench instructions -- $(SHORT_FLAG),scripts/prepare bench && scripts/instructions)

bench-tcp: prepare ## Segments per CPU second of our TCP, two endpoints back to back
	$(CARGO) $(BENCH) $(if $(SHORT),,-p midhop-tcp) --bench segments -- $(SHORT_FLAG)

formulas: build ## Long simulated flows beside the formulas of Mathis, Padhye, CUBIC and Hybla
	@$(PROGRAMS)/midhop formulas$(if $(SHORT), --seeds 1 --set congestion=reno --set loss='1 %' --set rtt=50ms --set 'transfers.flow.bytes="200 MB"')

truth: build ## The same 192 cells simulated and on real kernels, side by side (as root, 20 minutes)
	@scripts/prepare run
	@$(PROGRAMS)/midhop lab run scenarios/matrix.toml --jobs $(TRUTH_JOBS) --seeds $(if $(SHORT),1 $(SHORT_MATRIX),$(TRUTH_SEEDS) --resume) \
	  --out $(RESULTS)/truth/lab > /dev/null \
	  || echo 'some runs of the laboratory are not valid: run again, or the comparison leaves them out' >&2
	@$(PROGRAMS)/midhop sim run scenarios/matrix.toml --seeds $(if $(SHORT),1 $(SHORT_MATRIX),$(TRUTH_SEEDS)) --out $(RESULTS)/truth/sim > /dev/null
	@$(PROGRAMS)/midhop compare $(RESULTS)/truth/sim $(RESULTS)/truth/lab

reference: build ## 54 cells on Debian's kernel in virtual time, simulated, and on this machine's (as root, an hour)
	@scripts/prepare run
	@SHORT=$(SHORT) scripts/reference $(PROGRAMS) $(RESULTS)/reference $(REFERENCE_SEEDS)

ns3: build ## Cells of two studies in ns-3 (from PyPI) and in the simulator, side by side
	@scripts/prepare run
	@SHORT=$(SHORT) scripts/beside-ns3 $(PROGRAMS) $(RESULTS)/ns3 $(NS3_SEEDS)

python: build ## The Python package: wheel, sdist, types, tests, notebooks, a Ray cluster (from PyPI)
	@scripts/prepare python
	@MIDHOP=$(abspath $(PROGRAMS)/midhop) scripts/python $(SHORT_FLAG)

book: prepare ## Build the book into target/book
	@scripts/prepare book
	@scripts/book

book-commands: build ## Run every command in the README and the book, the long ones too (half an hour, as root)
	@scripts/prepare test
	$(if $(SHORT),env -u SHORT -u MAKEFLAGS -u MAKEOVERRIDES,MIDHOP_BOOK=all) $(CARGO) test $(if $(SHORT),$(TESTED),--release --locked -p midhop) --test midhop -- --nocapture book::$(if $(SHORT),what_sentences_name_works)
	$(if $(SHORT),,$(CARGO) test --release --locked -p midhopd --test midhopd -- book:: installed::)

recipes: ## Every recipe that CI does not run whole, in its shortest form (as root)
	@scripts/recipes

clean: ## Remove what building and running left
	$(CARGO) clean $(if $(SHORT),--dry-run)
	$(if $(SHORT),,rm -rf $(RESULTS))
