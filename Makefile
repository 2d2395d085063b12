# Recipes for people. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
RESULTS ?= results
FUZZ_SECONDS ?= 60
TRUTH_SEEDS ?= 2
TRUTH_JOBS ?= 6

.PHONY: help prepare build demo test test-kernel check format lint tidy deny docs bpf fuzz bench-relay bench-sim formulas truth book book-commands clean

help: ## List the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prepare: ## Install what the system lacks (as root), or say what is missing
	@scripts/prepare build

build: prepare ## Build both programs, optimised
	$(CARGO) build --release --locked --bin midhop --bin midhopd

demo: build ## The main job: a page, a file and four flows over an emulated GEO satellite
	@scripts/prepare run
	@target/release/midhop demo --out $(RESULTS)/demo

test: prepare ## Every test: units, properties, vectors, namespaces end to end
	@scripts/prepare test
	@CARGO=$(CARGO) scripts/test --workspace --all-features --locked --no-fail-fast

test-kernel: ## Our TCP against this machine's kernel over lossy cables, hundreds of seeds
	$(CARGO) test --locked -p midhop-tcp --test kernel -- --include-ignored --nocapture

check: format lint tidy deny test ## What CI runs

format: ## Formatting as rustfmt.toml says
	$(CARGO) fmt --all -- --check

lint: prepare ## Clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings

tidy: ## Layers, file sizes, links
	$(CARGO) xtask tidy

deny: ## Licences and advisories of what we depend on (needs cargo-deny)
	@scripts/deny

docs: ## Documentation of all crates, warnings are errors
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items --locked

bpf: ## Rebuild the BPF programs and compare them with those committed (needs clang)
	@crates/bpf/build-objects.sh || [ $$? = 77 ]

fuzz: prepare ## Fuzz every target for FUZZ_SECONDS each (needs nightly Rust and cargo-fuzz)
	@scripts/fuzz $(FUZZ_SECONDS)

bench-relay: build ## Gb/s, CPU and connections/s of HAProxy, Envoy and midhopd, and of pairs beside quic-go
	@scripts/prepare bench
	MIDHOPD=$(CURDIR)/target/release/midhopd ENVOY=$(CURDIR)/target/peers/bin/envoy \
	  $(CARGO) bench --locked -p midhop-testbed --bench relay -- --out $(CURDIR)/$(RESULTS)/bench-relay

bench-sim: prepare ## Link-packets per CPU second and memory of the simulator, beside ns-3 (from PyPI)
	NS3_CHAIN="$$(scripts/ns3)" $(CARGO) bench --locked -p midhop-sim --bench speed

formulas: build ## Long simulated flows beside the formulas of Mathis, Padhye, CUBIC and Hybla
	@target/release/midhop formulas

truth: build ## The same 192 cells simulated and on real kernels, side by side (as root, 20 minutes)
	@scripts/prepare run
	@target/release/midhop lab run scenarios/matrix.toml --jobs $(TRUTH_JOBS) --seeds $(TRUTH_SEEDS) --resume \
	  --out $(RESULTS)/truth/lab > /dev/null \
	  || echo 'some runs of the laboratory are not valid: run again, or the comparison leaves them out' >&2
	@target/release/midhop sim run scenarios/matrix.toml --seeds $(TRUTH_SEEDS) --out $(RESULTS)/truth/sim > /dev/null
	@target/release/midhop compare $(RESULTS)/truth/sim $(RESULTS)/truth/lab

book: prepare ## Build the book into target/book
	@scripts/prepare book
	@scripts/book

book-commands: build ## Run every command in the README and the book, the long ones too (half an hour, as root)
	@scripts/prepare test
	MIDHOP_BOOK=all $(CARGO) test --release --locked -p midhop --test book -- --nocapture
	$(CARGO) test --release --locked -p midhopd --test book --test installed

clean: ## Remove what building and running left
	$(CARGO) clean
	rm -rf $(RESULTS)
