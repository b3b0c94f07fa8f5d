# install.mk - make install, uninstall, deb, dist; libexfold_fold.  Read by the Makefile.
#
# Knobs: PREFIX=/usr/local  DESTDIR=  STRIP=1  and every directory below, by its GNU name.

PREFIX       ?= /usr/local
BINDIR       ?= $(PREFIX)/bin
LIBDIR       ?= $(PREFIX)/lib
INCLUDEDIR   ?= $(PREFIX)/include
DATADIR      ?= $(PREFIX)/share
MANDIR       ?= $(DATADIR)/man
DOCDIR       ?= $(DATADIR)/doc/exfold
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
BASHCOMPDIR  ?= $(DATADIR)/bash-completion/completions
ZSHCOMPDIR   ?= $(DATADIR)/zsh/site-functions
INSTALL      ?= install

# The shell takes these names between quotes: what ends a quote, is more than a name in it, or begins an option is refused.  The
# directories below DESTDIR are lists to make, too.
DIRECTORIES = PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR DOCDIR PKGCONFIGDIR BASHCOMPDIR ZSHCOMPDIR
define NEWLINE


endef
HOLDS    = $(strip $(foreach c,' " ` $$ \,$(findstring $(c),$($(1)))) $(if $(findstring $(NEWLINE),$($(1))),newline))
UNFIT    = $(strip $(foreach v,DESTDIR $(DIRECTORIES),$(if $(call HOLDS,$(v))$(filter -%,$(firstword $($(v)))),$(v))) \
             $(foreach v,$(DIRECTORIES),$(if $(filter-out 1,$(words $($(v)))),$(v))))
ifneq ($(filter install install-strip uninstall,$(MAKECMDGOALS)),)
ifneq ($(UNFIT),)
$(error $(firstword $(UNFIT)) is no name to install below: without quotes, `, $$, \, newlines and a leading dash; no blanks but in DESTDIR)
endif
endif

# ---- libexfold_fold: the ABI of include/exfold/fold.h alone ----------------
FOLD_ABI    := $(shell sed -n 's/^.define EXF_FOLD_ABI \([0-9]*\).*/\1/p' include/exfold/fold.h)
# Beside the folds it has the grammar of variants, with what that calls of src/base, and the projectors that a runtime serves.
FOLD_READS  := $(addprefix $(BUILD)/src/,fold/fold_variant.o fold/projector_served.o $(addsuffix .o,$(addprefix base/,err mem names \
                 registry text))) $(filter $(BUILD)/src/fold/variant% $(BUILD)/src/fold/runtime%,$(LIB_O))
FOLD_O      := $(filter $(BUILD)/kernels/fold/fold_%,$(LIB_O)) $(FOLD_READS)
FOLD_LIBS   := $(if $(filter %_cuda.o,$(FOLD_O)),$(CUDA_LIBS)) -lm
FOLD_SONAME := libexfold_fold.so.$(FOLD_ABI)
FOLD_FILES  := $(BUILD)/$(FOLD_SONAME) $(BUILD)/libexfold_fold.so $(BUILD)/libexfold_fold.a

## fold-library: libexfold_fold, static and shared, for runtimes to call
fold-library: $(FOLD_FILES)

# The functions that the header declares, and that were built: all that a library shows.
$(BUILD)/gen/fold.names: include/exfold/fold.h install.mk $(BUILD)/gen/fold.built | $(BUILD)/gen
	@sed -n 's/^[a-z][a-z_ ]*[ *]\(exf_fold_[a-z_]*\)(.*/\1/p' $< \
	    $(if $(filter %_cuda.o,$(FOLD_O)),,| grep -v '_cuda$$') | LC_ALL=C sort >$@
$(BUILD)/gen/fold.map: $(BUILD)/gen/fold.names
	@{ echo 'EXFOLD_FOLD_$(FOLD_ABI) {'; echo 'global:'; sed 's/$$/;/' $<; echo 'local: *;'; echo '};'; } >$@
$(BUILD)/gen/fold.built: FORCE | $(BUILD)/gen
	@echo '$(FOLD_O)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/$(FOLD_SONAME): $(FOLD_O) $(BUILD)/gen/fold.map
	@echo "  LINK $@"
	$(Q)$(LINK_SO) -Wl,-soname,$(FOLD_SONAME) -Wl,--version-script,$(BUILD)/gen/fold.map -o $@ $(FOLD_O) $(FOLD_LIBS)
$(BUILD)/libexfold_fold.so: $(BUILD)/$(FOLD_SONAME)
	@ln -sf $(FOLD_SONAME) $@
$(BUILD)/libexfold_fold.a: $(FOLD_O) $(BUILD)/gen/fold.names
	@rm -f $@
	$(Q)$(CC) -r -nostdlib -o $(BUILD)/gen/fold.o $(FOLD_O)
	$(Q)objcopy --keep-global-symbols=$(BUILD)/gen/fold.names $(BUILD)/gen/fold.o
	$(Q)$(AR) rcs $@ $(BUILD)/gen/fold.o

# ---- libexfold_accumulate: the ABI of include/exfold/accumulate.h, and what of the programs' library it takes ----
RECORD_ABI    := $(shell sed -n 's/^.define EXF_RECORD_ABI \([0-9]*\).*/\1/p' include/exfold/accumulate.h)
RECORD_SONAME := libexfold_accumulate.so.$(RECORD_ABI)
LEFT_PAREN    := (
RECORD_NAMES  := $(shell sed -n 's/^[a-z][a-z0-9_ ]*[ *]\(exf_record_[a-z_]*\)$(LEFT_PAREN).*/\1/p' include/exfold/accumulate.h)

## record-library: libexfold_accumulate, for engines that record what their experts put out
record-library: $(BUILD)/$(RECORD_SONAME)
$(BUILD)/gen/libexfold.a: $(LIB_O) | $(BUILD)/gen
	@rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_O)
$(BUILD)/gen/record.map: include/exfold/accumulate.h install.mk | $(BUILD)/gen
	@echo 'EXFOLD_RECORD_$(RECORD_ABI) { global: $(RECORD_NAMES:%=%;) local: *; };' >$@
$(BUILD)/$(RECORD_SONAME): $(BUILD)/gen/libexfold.a $(BUILD)/gen/record.map
	@echo "  LINK $@"
	$(Q)$(LINK_SO) -Wl,-soname,$(RECORD_SONAME) -Wl,--version-script,$(BUILD)/gen/record.map -Wl,--as-needed -o $@ \
	    $(RECORD_NAMES:%=-Wl,-u,%) $< $(LDLIBS)
	@ln -sf $(RECORD_SONAME) $(BUILD)/libexfold_accumulate.so

# ---- pages made from the programs' tables (scripts/make_pages.py), completions ------------------
NAMES := $(TOOLS:$(BUILD)/bin/%=%)
PAGES := $(NAMES:%=$(BUILD)/man/%.1) $(BUILD)/man/exfold-recipe.5 $(BUILD)/man/exfold-manifest.5 \
         $(BUILD)/man/exfold-variants.7 $(BUILD)/man/exfold.7 \
         $(NAMES:%=$(BUILD)/completions/bash/%) $(NAMES:%=$(BUILD)/completions/zsh/_%)
PYTHON ?= python3

## pages: the manual pages and the completions of bash and zsh; needs python3
pages: $(PAGES)

$(BUILD)/gen/help.json: $(BUILD)/bin/exfold | $(BUILD)/gen
	@command -v $(PYTHON) >/dev/null || { echo "make pages needs python3; install it with: apt-get install python3"; exit 2; }
	@$< --help-json >$@.new && mv $@.new $@
$(BUILD)/man/%: $(BUILD)/gen/help.json scripts/make_pages.py docs/exfold.7.in
	@mkdir -p $(@D); $(PYTHON) scripts/make_pages.py $* <$< >$@.new && mv $@.new $@
$(BUILD)/completions/bash/%: scripts/completion.bash ; @mkdir -p $(@D); sed 's/@program@/$*/' $< >$@
$(BUILD)/completions/zsh/_%: scripts/completion.zsh ; @mkdir -p $(@D); sed 's/@program@/$*/' $< >$@

# ---- what goes where: kind, directory, mode, files --------------------------
PLACES = programs library libraries archive header pkgconfig man1 man5 man7 bash zsh recipes manifests schemas examples transformers plugin recorder torch model \
         scripts \
         slurm docs docs_pages docs_pictures
programs_in   = $(BINDIR)
programs      = $(TOOLS)
library_in    = $(LIBDIR)/exfold
library       = $(LIBRARY)
libraries_in  = $(LIBDIR)
libraries     = $(BUILD)/$(FOLD_SONAME) $(BUILD)/$(RECORD_SONAME)
archive_in    = $(LIBDIR)
archive       = $(BUILD)/libexfold_fold.a
header_in     = $(INCLUDEDIR)/exfold
header        = include/exfold/fold.h include/exfold/accumulate.h
pkgconfig_in  = $(PKGCONFIGDIR)
pkgconfig     = $(BUILD)/exfold-fold.pc $(BUILD)/exfold-accumulate.pc
man1_in       = $(MANDIR)/man1
man1          = $(filter %.1,$(PAGES))
man5_in       = $(MANDIR)/man5
man5          = $(filter %.5,$(PAGES))
man7_in       = $(MANDIR)/man7
man7          = $(filter %.7,$(PAGES))
bash_in       = $(BASHCOMPDIR)
bash          = $(filter $(BUILD)/completions/bash/%,$(PAGES))
zsh_in        = $(ZSHCOMPDIR)
zsh           = $(filter $(BUILD)/completions/zsh/%,$(PAGES))
recipes_in    = $(DATADIR)/exfold/recipes
recipes       = $(wildcard recipes/*.yaml)
manifests_in  = $(DATADIR)/exfold/data-manifests
manifests     = $(wildcard data-manifests/*.yaml)
schemas_in    = $(DATADIR)/exfold/schema
schemas       = $(SCHEMAS)
examples_in   = $(DATADIR)/exfold/examples
examples      = $(wildcard examples/*.jsonl examples/*.c)
transformers_in = $(DATADIR)/exfold/examples/transformers
transformers  = $(wildcard examples/transformers/*.py)
# fold_experts.py and exfold_torch.py read variant.py of the plugin, which lies from it as in the tree.
plugin_in     = $(DATADIR)/exfold/python/exfold_vllm
plugin        = $(wildcard python/exfold_vllm/*.py)
recorder_in   = $(DATADIR)/exfold/python/exfold_record
recorder      = $(wildcard python/exfold_record/*.py)
torch_in      = $(DATADIR)/exfold/examples/torch
torch         = $(wildcard examples/torch/*.py)
model_in      = $(DATADIR)/exfold/examples/demo-model
model         = $(filter-out %/reference,$(wildcard examples/demo-model/*))
scripts_in    = $(DATADIR)/exfold/scripts
scripts       = $(wildcard scripts/demo.sh scripts/regenerate-tables scripts/materialize_manifest.py scripts/render_chat.py scripts/table_lines.py scripts/quantize_experts.py scripts/pt_to_safetensors.py)
slurm_in      = $(DATADIR)/exfold/scripts/slurm
slurm         = $(wildcard scripts/slurm/*.sh)
docs_in       = $(DOCDIR)
docs          = README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE
docs_pages_in    = $(DOCDIR)/docs
docs_pages       = $(wildcard docs/*.md)
docs_pictures_in = $(DOCDIR)/docs/pictures
docs_pictures    = $(wildcard docs/pictures/*)
mode          = $(if $(filter programs library libraries scripts slurm,$(1)),755,644)
OWN_DIRS      = $(model_in) $(transformers_in) $(plugin_in) $(recorder_in) $(DATADIR)/exfold/python $(torch_in) $(examples_in) $(recipes_in) $(manifests_in) $(schemas_in) $(slurm_in) $(scripts_in) $(DATADIR)/exfold \
                $(docs_pictures_in) $(docs_pages_in) $(DOCDIR) $(header_in) $(library_in)

# Debugging symbols go where STRIP is set: all of a program and a shared library, those alone of an archive.
strip_flag    = $(if $(STRIP),$(if $(filter programs library libraries,$(1)),-s))

# Programs as they were built find the library in ../lib/exfold.  Where BINDIR and LIBDIR lie otherwise, they are linked for that.
LIB_FROM_BIN  = $(shell realpath -ms --relative-to='$(BINDIR)' '$(library_in)')

# What was installed, so that no file of somebody else is replaced or removed (scripts/install-files.sh).
INSTALLED     = $(DATADIR)/exfold/installed.sha256
STAGE         = $(BUILD)/stage

## install: programs, libraries, pages and data below DESTDIR and PREFIX
install: all fold-library record-library pages $(BUILD)/exfold-fold.pc $(BUILD)/exfold-accumulate.pc
	@rm -rf $(STAGE)
	@$(foreach p,$(PLACES),mkdir -p '$(STAGE)$($(p)_in)' && \
	    $(INSTALL) $(call strip_flag,$(p)) -m $(call mode,$(p)) $($(p)) '$(STAGE)$($(p)_in)' &&) :
	@$(if $(filter-out ../lib/exfold,$(LIB_FROM_BIN)),$(foreach t,$(NAMES),$(call LINK,$(LIB_FROM_BIN)) -rdynamic $(if $(STRIP),-s) \
	    -o '$(STAGE)$(BINDIR)/$(t)' $(BUILD)/main/$(t).o $(LIBRARY) &&) :)
	@$(if $(STRIP),strip --strip-debug '$(STAGE)$(LIBDIR)/$(notdir $(archive))')
	@ln -s $(FOLD_SONAME) '$(STAGE)$(LIBDIR)/libexfold_fold.so'
	@ln -s $(RECORD_SONAME) '$(STAGE)$(LIBDIR)/libexfold_accumulate.so'
	@INSTALL='$(INSTALL)' scripts/install-files.sh install $(STAGE) '$(DESTDIR)' '$(INSTALLED)'
	@rm -rf $(STAGE)

## install-strip: install, without debugging symbols
install-strip:
	+@$(MAKE) --no-print-directory install STRIP=1

## uninstall: remove what install put there and nobody changed, and directories that are ExFold's alone and empty
uninstall:
	@scripts/install-files.sh uninstall '$(DESTDIR)' '$(INSTALLED)'
	@for d in $(foreach d,$(OWN_DIRS),'$(d)'); do rmdir '$(DESTDIR)'"$$d" 2>/dev/null || :; done

# Written for this PREFIX at every install.
$(BUILD)/exfold-fold.pc: FORCE
	@mkdir -p $(@D)
	@{ echo 'prefix=$(PREFIX)'; echo 'libdir=$(LIBDIR)'; echo 'includedir=$(INCLUDEDIR)'; echo 'abi=$(FOLD_ABI)'; \
	   echo 'cuda=$(if $(filter %_cuda.o,$(FOLD_O)),1,0)'; echo; \
	   echo 'Name: exfold-fold'; echo 'Description: folding of mixture-of-experts routes, as a runtime calls it'; \
	   echo 'Version: $(VERSION)'; echo 'Cflags: -I$${includedir}'; echo 'Libs: -L$${libdir} -lexfold_fold'; \
	   echo 'Libs.private: $(FOLD_LIBS)'; } >$@

$(BUILD)/exfold-accumulate.pc: FORCE
	@mkdir -p $(@D)
	@{ echo 'prefix=$(PREFIX)'; echo 'libdir=$(LIBDIR)'; echo 'includedir=$(INCLUDEDIR)'; echo 'abi=$(RECORD_ABI)'; echo; \
	   echo 'Name: exfold-accumulate'; echo 'Description: statistics of a mixture of experts that another program runs'; \
	   echo 'Version: $(VERSION)'; echo 'Cflags: -I$${includedir}'; echo 'Libs: -L$${libdir} -lexfold_accumulate'; } >$@

# ---- a package for Debian and Ubuntu -------------------------------------------
DEB_VERSION ?= $(VERSION)
DEB          = $(BUILD)/exfold_$(DEB_VERSION)_$(shell dpkg --print-architecture).deb
DEB_LIBDIR   = /usr/lib/$(shell $(CC) -print-multiarch)

## deb: $(BUILD)/exfold_VERSION_ARCH.deb for the release of this machine (scripts/make-deb.sh): apt install ./exfold_*.deb
deb: all fold-library record-library pages
	@command -v dpkg-deb >/dev/null || { echo "make deb needs dpkg-deb, which Debian and Ubuntu have"; exit 2; }
	@rm -rf $(BUILD)/deb
	+@$(MAKE) --no-print-directory install STRIP=1 DESTDIR='$(BUILD)/deb' STAGE='$(BUILD)/stage-deb' PREFIX=/usr LIBDIR='$(DEB_LIBDIR)'
	$(Q)scripts/make-deb.sh '$(BUILD)/deb' '$(DEB_LIBDIR)' '$(DEB_VERSION)' '$(DEB)'
	@rm -rf $(BUILD)/deb
	@cd '$(dir $(DEB))' && sha256sum '$(notdir $(DEB))'

## check-deb: make deb in bare roots of Debian 12 and 13, apt install and the demo in others (SUITES: others); as root
check-deb:
	$(Q)BUILD='$(BUILD)' tests/deb.sh $(SUITES)

## check-install: install into a scratch directory, use what is there, uninstall
check-install: all fold-library record-library pages
	$(Q)BUILD='$(BUILD)' MAKE='$(MAKE)' CC='$(CC)' SANFLAGS='$(SANFLAGS)' PKG_CONFIG='$(PKG_CONFIG)' tests/install.sh

# ---- the source as one file ---------------------------------------------------
DIST       = exfold-$(VERSION)
DIST_GZIP ?= gzip -n

## dist: $(BUILD)/exfold-VERSION.tar.gz of the last commit; the same bytes for the same commit
dist:
	@git rev-parse -q --verify HEAD >/dev/null || { echo "make dist needs the git repository"; exit 1; }
	@git diff --quiet HEAD || echo "dist: the working tree differs from the commit; the file holds the commit"
	@mkdir -p $(BUILD)
	@git -c tar.umask=0022 archive --format=tar --prefix=$(DIST)/ HEAD | $(DIST_GZIP) >$(BUILD)/$(DIST).tar.gz.new
	@mv $(BUILD)/$(DIST).tar.gz.new $(BUILD)/$(DIST).tar.gz
	@cd $(BUILD) && sha256sum $(DIST).tar.gz

.PHONY: fold-library record-library pages install install-strip uninstall deb check-deb check-install dist
