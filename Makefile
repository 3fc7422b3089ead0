# Kumki. "make help" lists the targets.

# Version of what is built and of the images that are named by it.
VERSION ?= 0.1.0

# Where the images are: the operator's, and <base>-bundle and <base>-catalog.
IMAGE_TAG_BASE ?= ghcr.io/kumki-dev/kumki

# The operator's image. Of the local clusters it is never pulled, so it has a tag of its own there.
IMG ?= $(IMAGE_TAG_BASE):dev
RELEASE_IMG = $(if $(filter command environment,$(firstword $(origin IMG))),$(IMG),$(IMAGE_TAG_BASE):$(VERSION))

# The Kubernetes cluster to work on: local, kind or current; see hack/cluster.sh.
CLUSTER ?= local
NODES ?= 3

# PostgreSQL versions whose images the local cluster gets.
POSTGRES_VERSIONS ?= 15 17 18

# Seeded runs of the simulation of leadership, in "make test" and in "make sim".
KUMKI_SIM_RUNS ?= 100000
SIM_RUNS ?= 2000000

# Rounds of each fault in "make bench-failover", and which of its faults (all if empty).
ROUNDS ?= 10
FAULTS ?=

# How long faults come in "make chaos".
CHAOS ?= 10m

# Whoever runs the tests may narrow them down: make test PKG=./internal/plan/...
PKG ?= ./...

SHELL = /usr/bin/env bash
.SHELLFLAGS = -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export CLUSTER NODES VERSION KUMKI_SIM_RUNS

LDFLAGS = -s -w -X github.com/kumki-dev/kumki/internal/version.Version=$(VERSION)
KUSTOMIZE = bin/kustomize
CONTROLLER_GEN = bin/controller-gen
GOLANGCI_LINT = bin/golangci-lint
KUBECONFIG_OF_CLUSTER = $$(hack/cluster.sh kubeconfig)
E2E_FILTER ?= !long
E2E_TIMEOUT ?= 60m

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*##"; printf "\nUsage: make \033[36mTARGET\033[0m [NAME=value]\n"} \
		/^[a-z0-9-]+:.*##/ {printf "  \033[36m%-17s\033[0m %s\n", $$1, $$2} \
		/^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)}' $(MAKEFILE_LIST)
	@printf '\nNames and their values now: CLUSTER=%s NODES=%s IMG=%s VERSION=%s\n\n' '$(CLUSTER)' '$(NODES)' '$(IMG)' '$(VERSION)'

##@ Try it

.PHONY: demo
demo: ## A cluster, the operator, three PostgreSQL instances; then the primary is killed.
	@hack/demo.sh

##@ Development

.PHONY: manifests
manifests: $(CONTROLLER_GEN) out ## Generate CustomResourceDefinitions, their reference and the operator's role.
	@$(CONTROLLER_GEN) crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	@$(CONTROLLER_GEN) rbac:roleName=operator paths=./controllers/... output:rbac:artifacts:config=config/rbac
	@go run ./hack/fields config/crd/bases/*.yaml > out/fields.md && cp out/fields.md docs/fields.md

.PHONY: generate
generate: $(CONTROLLER_GEN) ## Generate DeepCopy methods.
	@$(CONTROLLER_GEN) object paths=./api/...

.PHONY: fmt
fmt: ## Format all Go code.
	@gofmt -w -s $$(git ls-files -co --exclude-standard '*.go')

.PHONY: vet
vet: ## Run go vet, on the end-to-end tests too.
	@echo 'go vet'
	@go vet -tags e2e ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run golangci-lint on all modules.
	@$(GOLANGCI_LINT) run ./...
	@cd hack/localkube && ../../$(GOLANGCI_LINT) run ./...

.PHONY: lint-fix
lint-fix: $(GOLANGCI_LINT) ## Run golangci-lint and mend what it can.
	@$(GOLANGCI_LINT) run --fix ./...

.PHONY: verify
verify: manifests generate $(KUSTOMIZE) ## Prove that generated files, formatting and manifests are up to date.
	@hack/verify.sh

##@ Tests

.PHONY: test
test: test-packages bin/localkube vet ## Run unit, simulation, API server and process-level tests.
	@hack/test.sh $(PKG)

.PHONY: test-packages
test-packages:
	@hack/test-packages.sh

.PHONY: sim
sim: ## Run many more seeds of the simulation of leadership (SIM_RUNS).
	@KUMKI_SIM_RUNS=$(SIM_RUNS) go test ./internal/election/... -count=1 -timeout 12h -v -run Sim

.PHONY: chaos
chaos: bin/localkube ## Break instances at random for long (CHAOS), as processes under a writing client.
	@KUMKI_HA_CHAOS=$(CHAOS) TEST_FLAGS='-v' hack/test.sh ./test/ha -ginkgo.focus 'whatever comes'

.PHONY: e2e
e2e: cluster-up images operator-image deploy ## Run the end-to-end tests, except those of many minutes.
	@mkdir -p out
	KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) go test -tags e2e ./test/e2e -count=1 -v -timeout $(E2E_TIMEOUT) -ginkgo.v -ginkgo.timeout $(E2E_TIMEOUT) -ginkgo.label-filter='$(E2E_FILTER)'

.PHONY: soak
soak: ## Run all end-to-end tests, also those of many minutes.
	@$(MAKE) e2e E2E_FILTER= E2E_TIMEOUT=4h

.PHONY: bench-failover
bench-failover: cluster-up images operator-image deploy ## Measure faults under a writing client (ROUNDS of each); writes out/bench-failover.json.
	@mkdir -p out
	KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) go run ./hack/bench-failover -rounds $(ROUNDS) -only '$(FAULTS)' -out out/bench-failover.json

##@ Build

.PHONY: build
build: ## Build the binaries kumki, kumki-wal and kumki-archive to bin/.
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/kumki .
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/kumki-wal ./cmd/kumki-wal
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/kumki-archive ./cmd/kumki-archive

.PHONY: run
run: ## Run the operator on this machine, against the cluster's API server.
	KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) KUMKI_IMAGE=$(IMG) go run . operator

.PHONY: docker-build
docker-build: ## Build the operator's image with Docker.
	docker build --build-arg VERSION=$(VERSION) -t $(IMG) .

.PHONY: docker-push
docker-push: ## Push the operator's image with Docker.
	docker push $(IMG)

.PHONY: build-installer
build-installer: manifests generate $(KUSTOMIZE) ## Write dist/install.yaml: one file for kubectl apply.
	@mkdir -p dist
	@hack/render.sh $(RELEASE_IMG) > dist/install.yaml.tmp && mv dist/install.yaml.tmp dist/install.yaml
	@echo "dist/install.yaml installs $(RELEASE_IMG)"

##@ Cluster

.PHONY: cluster-up
cluster-up: cluster-tools ## Bring the cluster up (CLUSTER=local, kind or current).
	@hack/cluster.sh up

.PHONY: cluster-down
cluster-down: cluster-tools ## Take the cluster down; leftovers of a killed run too.
	@hack/cluster.sh down

.PHONY: images
images: cluster-tools ## Build PostgreSQL images and load them into the cluster.
	@hack/cluster.sh images $(POSTGRES_VERSIONS)

.PHONY: operator-image
operator-image: cluster-tools ## Build the operator's image and load it into the cluster.
	@hack/cluster.sh operator-image $(IMG)

.PHONY: install
install: manifests $(KUSTOMIZE) cluster-tools ## Install the CustomResourceDefinitions into the cluster.
	@hack/cluster.sh confirm
	@$(KUSTOMIZE) build config/crd | hack/kubectl.sh apply --server-side --force-conflicts -f -

.PHONY: uninstall
uninstall: $(KUSTOMIZE) cluster-tools ## Remove the CustomResourceDefinitions, and with them every PostgreSQLCluster.
	@hack/cluster.sh confirm
	@$(KUSTOMIZE) build config/crd | hack/kubectl.sh delete --ignore-not-found -f -

.PHONY: deploy
deploy: manifests $(KUSTOMIZE) cluster-tools ## Install the operator into the cluster and wait until it is ready.
	@hack/cluster.sh confirm
	@hack/deploy.sh $(IMG)

.PHONY: undeploy
undeploy: $(KUSTOMIZE) cluster-tools ## Remove the operator; CustomResourceDefinitions and databases stay.
	@hack/cluster.sh confirm
	@hack/deploy.sh --undo

# Tools

.PHONY: cluster-tools
cluster-tools:
	@if [ "$(CLUSTER)" = local ]; then $(MAKE) bin/localkube; fi

out:
	@mkdir -p out

# Go itself knows whether a program has to be built again, so these are always "made".
.PHONY: bin/localkube $(CONTROLLER_GEN) $(KUSTOMIZE) $(GOLANGCI_LINT)
bin/localkube:
	@mkdir -p bin && cd hack/localkube && CGO_ENABLED=0 go build -o ../../bin/localkube .

$(CONTROLLER_GEN):
	@mkdir -p bin && cd hack/tools && go build -o ../../bin/ sigs.k8s.io/controller-tools/cmd/controller-gen

$(KUSTOMIZE):
	@mkdir -p bin && cd hack/tools && go build -o ../../bin/kustomize sigs.k8s.io/kustomize/kustomize/v5

$(GOLANGCI_LINT):
	@mkdir -p bin && cd hack/tools/lint && go build -o ../../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
