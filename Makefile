# Makefile - the whole build.  `make help` lists the targets and what was found.
#
# Knobs (command line or config.mk):
#   CUDA=auto|0|1  MPI=auto|0|1  SAN=address,undefined  BUILD=dir  V=1  CFLAGS=  HARDEN=  CUDA_ARCH=sm_80
#   FUZZ=name  SECONDS=60  CLANG=clang   (make fuzz)

BUILD     ?= build
CUDA      ?= auto
MPI       ?= auto
SAN       ?=
NVCC      ?= nvcc
CUDA_ARCH ?=
CFLAGS    ?= -O3 -g
CLANG     ?= clang
SECONDS   ?= 60
-include config.mk

ifneq ($(words $(BUILD)),1)
$(error BUILD is "$(BUILD)", but make takes a blank for the end of a name: give one name without blanks)
endif

# A directory that make did not make is not built in (scripts/build-directory.sh).
READS   := clean help uninstall print-packages print-missing print-full check-layers check-shell check-workflows
REFUSED := $(if $(filter-out $(READS),$(or $(MAKECMDGOALS),all)),$(shell scripts/build-directory.sh mark '$(BUILD)'))
ifneq ($(REFUSED),)
$(error $(REFUSED))
endif

comma   := ,
Q       := $(if $(V),,@)
VERSION := $(shell cat VERSION)

# ---- what is installed ---------------------------------------------------
PKG_CONFIG ?= pkg-config
PACKAGES = hdf5-serial yaml-0.1 jansson libpcre2-8 libutf8proc openblas libcrypto libxxhash cairo zlib libzstd
DEBIAN   = libhdf5-dev libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libopenblas-dev \
           libssl-dev libxxhash-dev libcairo2-dev fonts-dejavu-core zlib1g-dev libzstd-dev check pkg-config make gcc python3 \
           $(if $(filter 0,$(MPI)),,openmpi-bin libopenmpi-dev) $(if $(filter 1,$(CUDA)),g++) $(if $(filter full,$(FOR)),clang libomp-dev valgrind shellcheck yamllint python3-selenium slurmctld slurmd slurm-client munge $(CHROMIUM_PACKAGES))
# Ubuntu has Chromium as a snap alone, which no container runs: there CHROMIUM and CHROMEDRIVER name others (tests/report/run.sh).
CHROMIUM_PACKAGES = $(if $(shell grep -sx ID=ubuntu /etc/os-release),,chromium chromium-driver)
MISSING := $(strip $(foreach p,$(PACKAGES),$(if $(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null && echo 1),,$(p))))
DEPS_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(filter-out $(MISSING),$(PACKAGES)) 2>/dev/null)
DEPS_LIBS   := $(shell $(PKG_CONFIG) --libs $(filter-out $(MISSING),$(PACKAGES)) 2>/dev/null)
CHECK_LIBS   = $(shell $(PKG_CONFIG) --libs check 2>/dev/null)
CHECK_CFLAGS = $(shell $(PKG_CONFIG) --cflags check 2>/dev/null)

NVCC_PATH := $(shell command -v $(NVCC) 2>/dev/null)
ifeq ($(CUDA),auto)
override CUDA := $(if $(NVCC_PATH),$(if $(wildcard kernels/*_cuda.cu),1,0),0)
endif
ifeq ($(CUDA),1)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC_PATH)))
CUDA_CFLAGS := -isystem $(CUDA_HOME)/include
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt -lpthread
# Machine code for A100 (and 8.6), Ada and Hopper; PTX that later GPUs compile at start, and Turing.
GENCODE   := $(if $(CUDA_ARCH),-arch=$(CUDA_ARCH),$(foreach c,80:sm_80 89:sm_89 90a:sm_90a 80:compute_80 75:compute_75,-gencode arch=compute_$(subst :,$(comma)code=,$(c))))
# Machine code compresses to a fifth.  What nvcc 13 makes runs on drivers that can read this; what older ones make runs on others, too.
FATBIN    := $(if $(shell [ "$$($(NVCC) --version | sed -n 's/.*release \([0-9]*\).*/\1/p')" -ge 13 ] 2>/dev/null && echo 1),--compress-mode=size)
endif

# MPI, for calibrations and validations on several ranks: Open MPI or MPICH.
MPI_MODULE := $(firstword $(foreach p,ompi-c mpich,$(if $(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null && echo 1),$(p))))
MPICC      ?= mpicc
ifeq ($(MPI),auto)
override MPI := $(if $(MPI_MODULE)$(shell command -v $(MPICC) 2>/dev/null),1,0)
endif
ifeq ($(MPI),1)
MPI_FLAGS  := $(if $(MPI_MODULE),$(shell $(PKG_CONFIG) --cflags --libs $(MPI_MODULE)),$(shell $(MPICC) --showme 2>/dev/null || $(MPICC) -show))
MPI_CFLAGS := $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_FLAGS)))
MPI_LIBS   := $(filter -L% -l% -Wl%,$(MPI_FLAGS))
endif

# ---- flags -----------------------------------------------------------------
# No contraction of a*b+c: a table must not depend on what the compiler fuses.
# Nobody reads the floating-point exception flags or errno of expf(): without
# them the loops over exf_expf() become vector code, with the same bits.
STD      = -std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -fno-trapping-math -fno-math-errno
WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wwrite-strings
OPENMP   = -fopenmp
INCLUDE  = -Iinclude -Isrc -I. -I$(BUILD)
# One flag per sanitizer: nvcc -Xcompiler would split a comma-joined list.
SANFLAGS = $(if $(SAN),$(addprefix -fsanitize=,$(subst $(comma), ,$(SAN))) -fno-omit-frame-pointer -fno-sanitize-recover=all -DEXF_SANITIZED)
DEFINES  = -DEXF_HAVE_CUDA=$(CUDA)
# What makes an error of memory an end instead of an attack: canaries, probed stacks, checked copies, addresses that
# are random, tables of functions that are read-only.  It changes no result.  Copies are checked in optimised code alone;
# sanitizers check them themselves.
X86      := $(filter x86_64% i%86%,$(shell $(CC) -dumpmachine 2>/dev/null))
HARDEN   ?= -fstack-protector-strong -fstack-clash-protection $(if $(X86),-fcf-protection) \
            $(if $(SAN),,$(if $(filter -O1 -O2 -O3 -Os,$(CFLAGS)),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3))
HARDEN_LD ?= -Wl,-z,relro,-z,now
# All code is for a shared library whose functions nobody replaces: they call each other directly, and are inlined.
PIC      := -fPIC -fno-semantic-interposition
COMPILE  = $(STD) $(WARN) $(OPENMP) $(CFLAGS) $(HARDEN) $(PIC) $(SANFLAGS) $(DEFINES) $(INCLUDE) $(DEPS_CFLAGS)
LDLIBS   = $(OPENMP) $(DEPS_LIBS) $(MPI_LIBS) $(CUDA_LIBS) -lpthread -lm
# A program finds libexfold.so from its own place, which $(1) leads out of, and looks nowhere else first: DT_RPATH comes before
# LD_LIBRARY_PATH, DT_RUNPATH would come after it.  What the library itself needs was looked for when it was linked.
LINK     = $(CC) -pie $(HARDEN_LD) $(SANFLAGS) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/$(1)' -Wl,--allow-shlib-undefined $(LDFLAGS)
LINK_SO  = $(CC) -shared $(HARDEN_LD) $(SANFLAGS) $(LDFLAGS) $(if $(SAN),,-Wl$(comma)-z$(comma)defs)
# build/bin, build/tests/cli -> ../lib/exfold, ../../lib/exfold
FIND_LIB = $(subst $() ,,$(foreach d,$(subst /, ,$(patsubst $(BUILD)%,%,$(@D))),../))lib/exfold

# ---- what is built: nothing here lists a file by hand ----------------------
# Everything but src/cli/main.c and src/fold/projector_served.c, which is of libexfold_fold, goes into libexfold.so; src/cli/exfold.c and every
# src/cli/exfold-*.c describe a program of the same name, whose main is src/cli/main.c, and nothing else;
# every check_*.c in tests/unit/<module> is a suite of the test program build/checks/<module>,
# every one in tests/cuda of build/checks/cuda.
LIB_C  := $(filter-out src/cli/main.c src/fold/projector_served.c,$(sort $(wildcard src/*/*.c))) $(sort $(wildcard kernels/*.c kernels/*/*.c))
LIB_CU := $(if $(filter 1,$(CUDA)),$(sort $(wildcard kernels/*.cu kernels/*/*.cu)))
# The kernels of include/exfold/fold.h on a GPU are for runtimes, in libexfold_fold, and for validations.  They have no numbers of
# lines for a profiler, which are half of what the others take.
FOLD_CU := $(filter kernels/fold/fold_%,$(LIB_CU))
LIB_O  := $(LIB_C:%.c=$(BUILD)/%.o) $(patsubst %.cu,$(BUILD)/%.o,$(LIB_CU))
LIBRARY := $(BUILD)/lib/exfold/libexfold.so
# The JSON Schemas lie where the programs look for them, built or installed: in ../share/exfold/schema.
SCHEMAS := $(patsubst %,$(BUILD)/share/exfold/schema/%.json,recipe manifest)
TOOLS  := $(patsubst src/cli/%.c,$(BUILD)/bin/%,$(sort $(wildcard src/cli/exfold.c src/cli/exfold-*.c)))
CHECK_C := $(sort $(wildcard tests/unit/*/check_*.c tests/cuda/check_*.c))
CHECK_DIRS  := $(sort $(patsubst %/,%,$(dir $(CHECK_C))))
CHECKS_CUDA := $(BUILD)/checks/cuda
CHECKS_CPU  := $(addprefix $(BUILD)/checks/,$(notdir $(filter tests/unit/%,$(CHECK_DIRS))))
CHECK_O := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/suite_main.c,$(sort $(wildcard tests/support/*.c))))
FUZZ_NAMES  := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
# Beside a library that is linked with the shared runtime of CUDA, so that its calls can be made to fail.
FAULTY_CUDA := $(addprefix $(BUILD)/cudart/bin/,exfold-calibrate exfold-validate)
PRELOADED   := $(addprefix $(BUILD)/tests/,kill/kill_at_call.so kill/slow_names.so faults/fault_at_call.so foreign/trace_calls.so)
FAKE_NODES  := $(if $(filter 1,$(MPI)),$(BUILD)/tests/ranks/fake_nodes.so)
RANK_SUMS   := $(if $(filter 1,$(MPI)),$(BUILD)/tests/ranks/sums)
MUTANTS     := $(BUILD)/tests/mutants/mutants
FORGE       := $(BUILD)/tests/cli/forge
REPLAYS     := $(FUZZ_NAMES:%=$(BUILD)/tests/fuzz/fuzz_%)

# ---- how the tests run -----------------------------------------------------
# Tests share the processors: threads that wait for work sleep at once.
export OMP_WAIT_POLICY ?= passive
# A sanitizer's exit status is none of our own (err.h).
export ASAN_OPTIONS  ?= exitcode=99
export LSAN_OPTIONS  ?= exitcode=99:suppressions=$(CURDIR)/tests/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS ?= exitcode=99:print_stacktrace=1
export TSAN_OPTIONS  ?= exitcode=99:die_after_fork=0:ignore_noninstrumented_modules=1
# No GPU code under the sanitizers: nothing would run it.  -O1: they see the same errors, and half the time is compiling.
SANITIZED = --no-print-directory CUDA=0 BUILD=$(BUILD)-san SAN=address,undefined CFLAGS="-O1 -g"
# The modules with threads, and those that call them.  libarcher.so, which lies beside clang's OpenMP runtime, tells the sanitizer
# what that runtime orders; what other libraries do is not looked at.
ARCHER    ?= $(firstword $(foreach d,$(realpath $(shell $(CLANG) -print-resource-dir 2>/dev/null)/../..) \
              $(dir $(shell $(CLANG) -print-file-name=libomp.so 2>/dev/null)),$(wildcard $(d)/libarcher.so)))
TSAN       = --no-print-directory CC=$(CLANG) CUDA=0 BUILD=$(BUILD)-tsan SAN=thread CFLAGS="-O1 -g"
TSAN_ROOMS = base format artifact tokenizer model weights capture pass accumulate fold
FULL       = check check-slow check-install replay check-ranks docs-check check-shell check-reference check-kill check-overlap check-foreign check-mutants check-faults check-slurm check-san check-fuzz check-valgrind check-tsan check-report check-workflows $(if $(filter-out 0,$(INTEROP)),check-interop) $(if $(filter 1,$(CUDA)),check-cuda)
VALGRIND  = valgrind -q --trace-children=yes --error-exitcode=99 --suppressions=tests/valgrind.supp \
            --leak-check=full --show-leak-kinds=definite,indirect,possible --errors-for-leak-kinds=definite,indirect,possible
SMALL     = --set data.sequences=3 --set data.max_tokens=64 --set coverage.fail_below=0

## all: build libexfold.so and the programs (default)
all: deps $(TOOLS) $(SCHEMAS)

## checks: build the test programs, run nothing
checks: deps deps-checks $(CHECKS_CPU)

## check: two minutes: the house's rules, documentation, unit tests and programs from the outside but those of tests/slow.txt
check: export TIER = fast
check: check-layers check-calls check-units check-cli docs-check-quick

## check-slow: the unit tests and programs from the outside that check leaves out (tests/slow.txt)
check-slow: export TIER = slow
check-slow: check-units check-cli
.PHONY: check-slow

## check-full: before a merge: check, and all of the below that needs no GPU (INTEROP=1: the readers of exports too)
check-full:
	+@failed=; for t in $(FULL); do echo "==> make $$t"; $(MAKE) --no-print-directory $$t || failed="$$failed $$t"; done; \
	    [ -z "$$failed" ] || { echo "check-full failed in:$$failed"; exit 1; }
print-full: ; @echo $(FULL)

## check-units: the unit tests (tests/unit), on the CPU; some of them: build/checks/ROOM SUITE
check-units: checks
	$(Q)scripts/run-checks.sh $(CHECKS_CPU)

## messages: write tests/golden/messages.txt, the wording of errors, anew from the unit tests: read the difference
messages: checks
	$(Q)ACCEPT_MESSAGES=1 scripts/run-checks.sh $(CHECKS_CPU)
.PHONY: messages

## check-scripts: the Python scripts, alone and beside datasets and transformers (installs them)
check-scripts:
	$(Q)BUILD=$(BUILD) tests/scripts/run.sh
.PHONY: check-scripts

## check-cuda: the CUDA tests; on a machine without a GPU they say so and pass
check-cuda: deps $(CHECKS_CUDA)
	$(Q)WITHOUT=check_cuda_released scripts/run-checks.sh $(CHECKS_CUDA)
	$(Q)TMPDIR=$(if $(wildcard /dev/shm),/dev/shm,$${TMPDIR:-/tmp}) $(CHECKS_CUDA) check_cuda_released

## cli-tools: build what the cases of tests/cli run beside the programs
cli-tools: all $(PRELOADED) $(FAKE_NODES) $(MUTANTS) $(FORGE) $(BUILD)/bench/make_checkpoint
.PHONY: cli-tools

## check-cli: the programs, from the outside (tests/cli)
check-cli: cli-tools
	$(Q)BUILD=$(BUILD) tests/cli/run.sh tests/cli/cases/* tests/bad/*.cases

## check-ranks: runs of several processes under mpirun (tests/cli/ranks); a build without MPI says so and passes
check-ranks: all $(PRELOADED) $(FAKE_NODES) $(RANK_SUMS)
	$(Q)BUILD=$(BUILD) tests/cli/run.sh tests/cli/ranks/*
.PHONY: check-ranks

## check-reference: the demo model, every variant, beside its float64 reference (tests/reference)
check-reference: all $(BUILD)/tests/reference/compare_reference
	@rm -rf $(BUILD)/reference
	$(Q)$(BUILD)/bin/exfold-calibrate -q tests/reference/recipe.yaml --output $(BUILD)/reference >/dev/null
	$(Q)$(BUILD)/bin/exfold-validate -q tests/reference/recipe.yaml --output $(BUILD)/reference --sensitivities \
	    --set validate.manifest=data-manifests/demo-tokens.yaml >/dev/null
	$(Q)$(BUILD)/bin/exfold-solve -q tests/reference/recipe.yaml --output $(BUILD)/reference --force \
	    --sensitivities $(BUILD)/reference/sensitivities.json >/dev/null
	$(Q)$(BUILD)/bin/exfold-validate -q tests/reference/recipe.yaml --output $(BUILD)/reference >/dev/null
	$(Q)$(BUILD)/tests/reference/compare_reference $(BUILD)/reference/validation.json $(wildcard tests/reference/*_ppl.json)
	$(Q)$(BUILD)/bin/exfold-inspect --json $(BUILD)/reference/tables.h5 >$(BUILD)/reference/inspect.json
	$(Q)$(BUILD)/tests/reference/compare_reference --norm-head $(BUILD)/reference/inspect.json tests/reference/norm_head.json
	$(Q)$(BUILD)/bin/exfold-export -q $(BUILD)/reference/tables.h5 --output $(BUILD)/reference \
	    --set output.targets=safetensors >/dev/null
	$(Q)if python3 -c 'import numpy' 2>/dev/null; then \
	    python3 tests/reference/ref_norm_head.py $(BUILD)/reference/tables.safetensors; \
	else echo "numpy is missing: predicted norms are not compared"; fi

## check-kill: a small calibration, validation and capture, killed and interrupted at every eighth call that changes a file (KILL_STEP=1: at each), go on (tests/kill)
KILL_STEP ?= 8
check-kill: all $(PRELOADED)
	$(Q)BUILD=$(BUILD) tests/kill/run.sh $(KILL_STEP)

## check-overlap: pairs of calibrations that share a directory of resume points, killed and halted at random; OVERLAPS=50: more of them
check-overlap: all $(PRELOADED)
	$(Q)BUILD=$(BUILD) tests/kill/overlap.sh $(or $(OVERLAPS),10)
.PHONY: check-overlap

## check-slurm: the job scripts of scripts/slurm on a Slurm of one node that it starts, where slurmctld, slurmd and munge are installed
check-slurm: all
	$(Q)BUILD=$(BUILD) tests/slurm/run.sh
.PHONY: check-slurm

## check-foreign: every program and script in a directory of foreign files under their names, below a tracer (tests/foreign)
check-foreign: all $(PRELOADED)
	$(Q)BUILD=$(BUILD) MAKE='$(MAKE)' tests/foreign/run.sh
.PHONY: check-foreign

## check-mutants: the programs on some thousand damaged files of every format (tests/mutants); BUILD=build-san: sanitized
check-mutants: all $(BUILD)/tests/kill/kill_at_call.so $(MUTANTS)
	$(Q)BUILD=$(BUILD) tests/mutants/run.sh
.PHONY: check-mutants check-faults

## check-faults: small runs whose n-th allocation, read, write, ... fails, or whose memory ends (tests/faults); STEP=100: more of them
check-faults: all $(PRELOADED)
	$(Q)BUILD=$(BUILD) sh tests/faults/run.sh $(STEP)

## check-cuda-faults: small runs on a GPU whose n-th call of the CUDA runtime fails; STEP=20: more of them
check-cuda-faults: deps $(if $(filter 1,$(CUDA)),$(FAULTY_CUDA) $(PRELOADED))
	$(if $(filter 1,$(CUDA)),,@echo "make check-cuda-faults needs CUDA=1 and a GPU"; exit 2)
	$(Q)CALLS=cuda BUILD=$(BUILD) sh tests/faults/run.sh $(STEP)
.PHONY: check-cuda-faults

## check-interop: the exports, read with PyTorch, safetensors, h5py and NumPy, folding as an operator of PyTorch, in transformers and in vLLM (installs them)
check-interop: all fold-library record-library $(BUILD)/tests/interop/make_deepseek_v4
	$(Q)BUILD=$(BUILD) tests/interop/run.sh

## check-vllm: of check-interop what folds in vLLM; MODELS="demo glm4_moe": those alone
check-vllm: all fold-library record-library
	$(Q)BUILD=$(BUILD) tests/interop/vllm.sh $(MODELS)

## check-report: the page of exfold-inspect report in Chromium: controls, keyboard, colours, widths, a model of 48 x 128 experts
check-report: all $(BUILD)/tests/report/make_wide_tables
	$(Q)BUILD=$(BUILD) tests/report/run.sh

## check-workflows: the files of .github/workflows, with yamllint
check-workflows:
	@command -v yamllint >/dev/null || { echo "make check-workflows needs yamllint; install it with: apt-get install yamllint"; exit 2; }
	$(Q)yamllint --strict -c .github/yamllint.yaml .github/workflows && echo "workflows: nothing to mend"
.PHONY: check-report check-workflows

## check-san: check-units and check-cli under address and undefined sanitizers
check-san:
	+@failed=0; CK_DEFAULT_TIMEOUT=600 $(MAKE) $(SANITIZED) check-units || failed=1; CASE_SECONDS=600 $(MAKE) $(SANITIZED) check-cli || failed=1; exit $$failed

## check-tsan: the unit tests of the modules with threads, compiled with clang, under the thread sanitizer
check-tsan:
	@[ -n "$(ARCHER)" ] || { echo "make check-tsan needs clang and libarcher.so; install them with: apt-get install clang libomp-dev"; exit 2; }
	+@OMP_TOOL_LIBRARIES=$(ARCHER) $(MAKE) $(TSAN) check-race check-modules ROOMS="$(TSAN_ROOMS)"
# The sanitizer finds a race in a parallel loop, and none where there is none.
check-race: $(BUILD)/tests/tsan/race
	$(Q)$(BUILD)/tests/tsan/race
	$(Q)! $(BUILD)/tests/tsan/race racy 2>$(BUILD)/tests/tsan/said && grep -q 'ThreadSanitizer: data race' $(BUILD)/tests/tsan/said
check-modules: deps deps-checks $(ROOMS:%=$(BUILD)/checks/%)
	$(Q)scripts/run-checks.sh $(ROOMS:%=$(BUILD)/checks/%)

## check-valgrind: a small calibration under valgrind: no error, no leak
check-valgrind: all
	@rm -rf $(BUILD)/valgrind
	$(Q)$(VALGRIND) $(BUILD)/bin/exfold-calibrate recipes/demo.yaml $(SMALL) --output $(BUILD)/valgrind
	$(Q)for f in statistics tables; do $(VALGRIND) $(BUILD)/bin/exfold-inspect $(BUILD)/valgrind/$$f.h5 >/dev/null || exit; done
	@rm -rf $(BUILD)/valgrind; echo "valgrind: no error, no leak"

## check-fuzz: every input under tests/fuzz/corpus again, under the sanitizers
check-fuzz:
	+@$(MAKE) $(SANITIZED) replay

## replay: every input under tests/fuzz/corpus again
replay: deps $(REPLAYS)
	$(Q)printf '%s\n' $(FUZZ_NAMES) | xargs -P $$(getconf _NPROCESSORS_ONLN) -I {} sh -c '$(BUILD)/tests/fuzz/fuzz_{} tests/fuzz/corpus/{}'

## fuzz-coverage: the lines of each parser that the corpora of tests/fuzz reach (gcov)
fuzz-coverage:
	+@$(MAKE) --no-print-directory CUDA=0 BUILD=$(BUILD)-coverage CFLAGS="-O0 --coverage" HARDEN= LDFLAGS="$(LDFLAGS) --coverage" replay
	$(Q)sh scripts/fuzz-coverage.sh $(BUILD)-coverage

## fuzz: search for new inputs with clang: make fuzz FUZZ=safetensors SECONDS=60
fuzz:
	@command -v $(CLANG) >/dev/null || { echo "make fuzz needs clang; install it with: apt-get install clang"; exit 2; }
	@[ -n "$(filter $(FUZZ),$(FUZZ_NAMES))" ] || { echo "make fuzz FUZZ=NAME, where NAME is one of: $(FUZZ_NAMES)"; exit 2; }
	+@$(MAKE) --no-print-directory CC=$(CLANG) CUDA=0 BUILD=$(BUILD)-fuzz SAN=fuzzer-no-link,address,undefined $(BUILD)-fuzz/fuzz_$(FUZZ)
	@mkdir -p $(BUILD)-fuzz/found/$(FUZZ)
	$(Q)$(BUILD)-fuzz/fuzz_$(FUZZ) -max_total_time=$(SECONDS) -max_len=$(if $(filter artifact,$(FUZZ)),262144,4096) -artifact_prefix=$(BUILD)-fuzz/$(FUZZ)- \
	    $(BUILD)-fuzz/found/$(FUZZ) tests/fuzz/corpus/$(FUZZ)

## bench: the demo calibration seven times: medians, and the machine's ceiling
bench: all
	$(Q)BUILD=$(BUILD) scripts/bench.sh

## bench-gpu: the forward on the GPU at the released models' shapes, beside ceilings and peers
bench-gpu: all $(BUILD)/bench/bench_kernels $(BUILD)/bench/bench_gram $(BUILD)/bench/bench_forward $(BUILD)/bench/bench_validate $(BUILD)/bench/make_checkpoint
	$(Q)BUILD=$(BUILD) scripts/bench_gpu.sh

## bench-ranks: whole calibrations on one and two GPUs of this machine, with what a dry run predicts (scripts/bench_ranks.sh: more)
bench-ranks: all $(BUILD)/bench/make_checkpoint
	$(Q)BUILD=$(BUILD) scripts/bench_ranks.sh

## bench-budget: budgets per token and stand-ins on the GPU, beside the joint folds, and the experts' time that they save
bench-budget: deps $(BUILD)/bench/bench_budget
	$(Q)$(BUILD)/bench/bench_budget

## bench-mixers: the GPU kernels of the sequence mixers, beside the machine's ceilings
bench-mixers: deps $(BUILD)/bench/bench_mixers
	$(Q)$(BUILD)/bench/bench_mixers

## bench-sinks: how long a pass on a GPU waits for its statistics; needs no GPU (tests/bench/bench_sinks.c)
bench-sinks: deps $(BUILD)/bench/bench_sinks
	$(Q)for i in 1 2 3 4 5; do $(BUILD)/bench/bench_sinks $(BUILD)/bench/sinks.h5 13 10 || exit 1; done; rm -f $(BUILD)/bench/sinks.h5

## check-layers: no #include points up or sideways; no two files share a name; every constant of a CUDA kernel is crossed by a test
check-layers:
	$(Q)scripts/check-layers.sh
	$(Q)scripts/check-boundaries.sh

## check-calls: no source files call each other in a circle
check-calls: $(LIB_O)
	$(Q)scripts/check-calls.sh $(LIB_O)

## docs: the generated parts of README.md and docs (scripts/make-docs.sh)
docs: all
	$(Q)BUILD='$(BUILD)' scripts/make-docs.sh

## docs-check: every link, name, generated part, snippet and quoted output of README.md and docs (scripts/check-docs.sh)
docs-check: all $(BUILD)/bench/make_checkpoint
	$(Q)BUILD='$(BUILD)' scripts/check-docs.sh
	$(Q)BUILD='$(BUILD)' tests/docs.sh

# What of it needs no run of a model.
docs-check-quick: all
	$(Q)BUILD='$(BUILD)' scripts/check-docs.sh paths generated names

## check-shell: shellcheck on all shell scripts, those of the tests too
check-shell:
	$(Q)scripts/check-shell.sh
.PHONY: check-shell

## clean: remove the build directories that make made
clean:
	@scripts/build-directory.sh remove $(BUILD) $(BUILD)-san $(BUILD)-tsan $(BUILD)-fuzz $(BUILD)-coverage

## help: this list, and what was found
help:
	@sed -n 's/^## \([a-z-]*\): /  \1\t/p' Makefile install.mk | expand -t 18
	@echo
	@for p in $(PACKAGES) check; do \
	    if v=$$($(PKG_CONFIG) --modversion $$p 2>/dev/null); then echo "  found    $$p $$v"; else echo "  MISSING  $$p"; fi; done
	@echo "  $(if $(filter 1,$(CUDA)),found    nvcc ($(NVCC_PATH)): CPU and CUDA,$(if $(NVCC_PATH),unused   nvcc ($(NVCC_PATH)),no       nvcc): CPU only)"
	@echo "  $(if $(filter 1,$(MPI)),found    MPI ($(or $(MPI_MODULE),$(MPICC))): runs on several ranks,no       MPI: one process a run)"
	@$(if $(MISSING),echo "  To install what is missing: apt-get install $(DEBIAN)",true)

deps:
	@$(if $(MISSING),echo "missing: $(MISSING)"; echo "install with: apt-get install $(DEBIAN)"; exit 1,true)

deps-checks:
	@$(PKG_CONFIG) --exists check || { echo "missing: check"; echo "install with: apt-get install $(DEBIAN)"; exit 1; }

## print-packages: the Debian and Ubuntu packages that build and tests need (FOR=full: and check-full)
print-packages:
	@echo $(DEBIAN)

## print-missing: what this machine lacks, as modules of pkg-config and commands
print-missing:
	@echo $(MISSING) $$($(PKG_CONFIG) --exists check 2>/dev/null || echo check) \
	    $$(for c in gcc $(PKG_CONFIG) $(PYTHON) $(if $(filter full,$(FOR)),$(CLANG) valgrind shellcheck yamllint chromium chromedriver); do command -v $$c >/dev/null || echo $$c; done)

# A registry: src/model/family_*.c -> build/gen/family.inc, one X(name) per file, for the table in
# family.c; arguments: folder, prefix, what follows it in a name, the table's file without .c.
# Rewritten only when the set of files changes, so that adding one relinks the table.
define registry
$(BUILD)/gen/$(2).inc: FORCE | $(BUILD)/gen
	@{ $$(foreach f,$$(sort $$(wildcard $(1)/$(2)$(3)*.c)),echo 'X($$(f:$(1)/$(2)$(3)%.c=%))';) :; } > $$@.new
	@cmp -s $$@.new $$@ && rm $$@.new || mv $$@.new $$@
$(BUILD)/$(1)/$(4).o: $(BUILD)/gen/$(2).inc
endef
$(eval $(call registry,src/model,family,_,family))
$(eval $(call registry,src/solve,projector,_,projector))
$(eval $(call registry,src/export,writer,_,writer))
$(eval $(call registry,src/fold,runtime,_,runtime))
$(eval $(call registry,src/cli,exfold,-,program))

# What `exfold-inspect spec` prints are the comments on top of these.
SPECIFIED := $(addprefix src/,artifact/artifact.h artifact/provenance.h artifact/artifact_capture.c \
    accumulate/statistics_file.c artifact/artifact_tables.c)
$(BUILD)/gen/specification.inc: $(SPECIFIED) scripts/embed-specification.sh | $(BUILD)/gen
	$(Q)scripts/embed-specification.sh $(SPECIFIED) > $@.new && mv $@.new $@
$(BUILD)/src/inspect/inspection.o: $(BUILD)/gen/specification.inc

# Recipes and manifests of released models, for --init and for runs without a recipe.
RELEASED := $(filter-out %/demo.yaml %/demo-all.yaml %/demo-eval.yaml %/demo-tokens.yaml,$(sort $(wildcard recipes/*.yaml data-manifests/*.yaml)))
$(BUILD)/gen/released_files.inc: $(RELEASED) scripts/embed-lines.sh | $(BUILD)/gen
	$(Q)scripts/embed-lines.sh $(RELEASED) > $@.new && mv $@.new $@
$(BUILD)/src/recipe/recipe_defaults.o: $(BUILD)/gen/released_files.inc

# The report's page, style and script as arrays of bytes: report.css -> build/gen/report_css.inc.
REPORT_PARTS := $(sort $(wildcard src/inspect/report/report.*))
REPORT_INC   := $(patsubst src/inspect/report/report.%,$(BUILD)/gen/report_%.inc,$(REPORT_PARTS))
$(BUILD)/gen/report_%.inc: src/inspect/report/report.% | $(BUILD)/gen
	$(Q)od -A n -v -t u1 $< | sed 's/[0-9][0-9]*/&,/g' > $@.new && mv $@.new $@
$(BUILD)/src/inspect/report.o: $(REPORT_INC)

# Version and commit go into provenance; the header changes only when they do.
$(BUILD)/gen/version.h: FORCE | $(BUILD)/gen
	@{ echo '#define EXF_RELEASE "$(VERSION)"'; \
	   echo "#define EXF_COMMIT \"$$(scripts/source-commit.sh)\""; } > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/src/base/log.o: $(BUILD)/gen/version.h

# A build directory may change from MPI=0 to MPI=1, too.
$(BUILD)/gen/mpi: FORCE | $(BUILD)/gen
	@echo '$(MPI)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(patsubst %.c,$(BUILD)/%.o,$(wildcard src/ranks/*.c)): $(BUILD)/gen/mpi
$(BUILD)/src/ranks/%.o: DEPS_CFLAGS += -DEXF_HAVE_MPI=$(MPI) $(MPI_CFLAGS)

# A build directory may change from CUDA=0 to CUDA=1: what the compiler is told of it is compiled again.
$(BUILD)/gen/cuda: FORCE | $(BUILD)/gen
	@echo '$(CUDA)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/src/base/log.o $(BUILD)/kernels/backend_cpu.o $(BUILD)/tests/cuda/check_cuda_fold.o: $(BUILD)/gen/cuda

# tests/unit/pass/check_*.c -> build/gen/suites_pass.inc, one X(check_name) per file, and build/checks/pass.
define room_of_checks
$(BUILD)/gen/suites_$(notdir $(1)).inc: FORCE | $(BUILD)/gen
	@printf 'X(%s)\n' $(patsubst $(1)/%.c,%,$(filter $(1)/%,$(CHECK_C))) > $$@.new
	@cmp -s $$@.new $$@ && rm $$@.new || mv $$@.new $$@
$(BUILD)/$(1)/suites.o: tests/support/suite_main.c $(BUILD)/gen/suites_$(notdir $(1)).inc $(BUILD)/gen/pic
	@mkdir -p $$(@D); echo "  CC   $(1)/suites"
	$$(Q)$$(CC) $$(COMPILE) $$(CHECK_CFLAGS) -DEXF_SUITES='"gen/suites_$(notdir $(1)).inc"' -MMD -MP -MQ $$@ -c -o $$@ $$<
$(BUILD)/checks/$(notdir $(1)): $(patsubst %.c,$(BUILD)/%.o,$(filter $(1)/%,$(CHECK_C))) $(BUILD)/$(1)/suites.o $(CHECK_O) $(LIBRARY)
	$$(call link,$$(LDLIBS) $$(CHECK_LIBS))
endef
$(foreach d,$(CHECK_DIRS),$(eval $(call room_of_checks,$(d))))

# Links what a target needs; $(1): further arguments.
define link
@mkdir -p $(@D); echo "  LINK $@"
$(Q)$(call LINK,$(FIND_LIB)) -o $@ $^ $(1)
endef

$(BUILD)/gen: ; @mkdir -p $@
# Objects of a build directory of before there was a shared library, or OpenMP, are compiled again.
$(BUILD)/gen/pic: FORCE | $(BUILD)/gen
	@echo '$(PIC) $(OPENMP)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(LIBRARY) $(BUILD)/cudart/lib/exfold/libexfold.so: $(LIB_O)
	@mkdir -p $(@D); echo "  LINK $@"
	$(Q)$(LINK_SO) -Wl,-soname,$(@F),-Bsymbolic -o $@ $^ $(if $(filter $(BUILD)/cudart/%,$@),$(subst -lcudart_static,-lcudart,$(LDLIBS)),$(LDLIBS))
$(TOOLS:$(BUILD)/bin/%=$(BUILD)/main/%.o): $(BUILD)/main/%.o: src/cli/main.c $(BUILD)/gen/pic
	@mkdir -p $(@D)
	$(Q)$(CC) $(COMPILE) -DEXF_PROGRAM=exf_program_$(subst exfold-,,$*) -MMD -MP -MQ $@ -c -o $@ $<
# Programs show their function that OpenBLAS calls while it is loaded (src/cli/main.c).
$(BUILD)/bin/%: $(BUILD)/main/%.o $(LIBRARY)
	$(call link,-rdynamic)
$(SCHEMAS): $(BUILD)/share/exfold/schema/%.json: $(BUILD)/bin/exfold-inspect
	@mkdir -p $(@D); $< schema $* >$@.new && mv $@.new $@
$(BUILD)/cudart/bin/%: $(BUILD)/bin/% $(BUILD)/cudart/lib/exfold/libexfold.so
	@mkdir -p $(@D); cp $< $@
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIBRARY)
	$(call link,$(LDLIBS))
$(BUILD)/bench/%: $(BUILD)/tests/bench/%.o $(LIBRARY)
	$(call link,$(LDLIBS))
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/fuzz/replay.o $(LIBRARY)
	$(call link,$(LDLIBS))
$(BUILD)/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(LIBRARY)
	$(call link,-fsanitize=fuzzer $(LDLIBS))
$(PRELOADED): $(BUILD)/%.so: %.c
	@mkdir -p $(@D); echo "  LINK $@"
	$(Q)$(CC) -shared -fPIC -O1 $(if $(SAN),-DEXF_SANITIZED) -o $@ $< -ldl
$(BUILD)/tests/ranks/fake_nodes.so: tests/ranks/fake_nodes.c
	@mkdir -p $(@D); echo "  LINK $@"
	$(Q)$(CC) -shared -fPIC -O1 $(MPI_CFLAGS) -o $@ $< $(MPI_LIBS)
$(MUTANTS): tests/mutants/mutants.c
	@mkdir -p $(@D); echo "  LINK $@"
	$(Q)$(CC) $(STD) $(WARN) -O1 -Isrc -o $@ $<
$(BUILD)/%.o: %.c $(BUILD)/gen/pic
	@mkdir -p $(@D); echo "  CC   $<"
	$(Q)$(CC) $(COMPILE) $(if $(filter tests/%,$<),$(CHECK_CFLAGS) $(if $(filter check_%,$(@F)),-Dexf_suite=exf_suite_$(basename $(@F)))) \
	    $(if $(filter tests/cuda/%,$<),$(CUDA_CFLAGS)) -MMD -MP -MQ $@ -c -o $@ $<
$(BUILD)/%.o: %.cu $(BUILD)/gen/pic
	@mkdir -p $(@D); echo "  NVCC $<"
	$(Q)$(NVCC) -std=c++17 -O2 $(if $(filter $<,$(FOLD_CU)),,-g -lineinfo) $(GENCODE) $(FATBIN) $(addprefix -Xcompiler ,$(PIC) $(OPENMP) $(SANFLAGS)) $(INCLUDE) -MMD -MP -c -o $@ $<

include install.mk
-include $(LIB_O:.o=.d) $(FOLD_O:.o=.d) $(TOOLS:$(BUILD)/bin/%=$(BUILD)/main/%.d) $(CHECK_C:%.c=$(BUILD)/%.d) $(CHECK_DIRS:%=$(BUILD)/%/suites.d) $(CHECK_O:.o=.d) \
         $(wildcard $(BUILD)/tests/bench/*.d) $(REPLAYS:%=%.d) $(BUILD)/tests/fuzz/replay.d $(BUILD)/tests/interop/make_deepseek_v4.d $(BUILD)/tests/report/make_wide_tables.d \
         $(BUILD)/tests/reference/compare_reference.d
.PHONY: bench-ranks all checks check check-full print-full check-units check-modules check-race check-cuda check-cli check-san check-tsan check-reference check-interop check-vllm check-valgrind check-fuzz replay fuzz fuzz-coverage bench bench-gpu bench-budget bench-mixers bench-sinks check-layers check-calls docs docs-check docs-check-quick clean help \
        deps deps-checks print-packages print-missing FORCE
.SECONDARY:
