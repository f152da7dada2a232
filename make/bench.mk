# make bench, bench-cpu, bench-scaling, bench-smoke.

$(BENCHES): $(O)/bench/%: $(O)/dev/bench/%.cu.o $(TEST_ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)

BENCH := $(if $(OP),$(filter %/$(OP),$(BENCHES)),$(BENCHES))
bench: $(BENCH) ## build and run the benchmarks; OP=gelu runs one
	$(if $(BENCH),,$(error no benchmark$(if $(OP), dev/bench/$(OP).cu; there are: $(notdir $(BENCHES)), in dev/bench)))
	@set -e; for bench in $(BENCH); do $$bench; done

# On the emulator: the benchmarks of ops with a kernel, and that of launches. None of them needs collectives.
EMULATED_BENCH := $(patsubst %.cuh,$(E)/bench/%,$(notdir $(wildcard $(BENCH:$(O)/bench/%=llmc/cuda/%.cuh) $(BENCH:$(O)/bench/%=llmc/cuda/attention/%.cuh)))) \
  $(patsubst $(O)/bench/%,$(E)/bench/%,$(filter %/launches,$(BENCH)))
$(E)/bench/%: $(E)/dev/bench/%.cu.o $(NO_COLLECTIVES) $(TEST_ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)
-include $(EMULATED_BENCH:$(E)/bench/%=$(E)/dev/bench/%.cu.d)

bench-scaling: $(BIN)train_gpt ## tok/s of 1, 2, 4, ... ranks, into doc/performance.md; some minutes
	@python3 dev/results/bench_scaling.py --program $(or $(BIN),./)train_gpt $(BENCH_ARGS)

bench-cpu: ## a training step on the CPU, op by op, beside the machine's limits, into doc/performance.md; some minutes
	@+$(SUBMAKE) run-bench-cpu VARIANT=$(HOST_VARIANT)

run-bench-cpu: $(O)/bench/cpu_steps
	@python3 dev/bench/cpu_steps.py --program $< $(BENCH_ARGS)

bench-smoke: ## run every benchmark on tiny shapes, on the CPU and the emulated GPU
	@+$(SUBMAKE) run-bench-smoke VARIANT=$(or $(filter-out cuda,$(VARIANT)),cpu)

# A smoke test measures nothing. So all benchmarks but cpu_steps, which has flags of its own, are joined into three programs for the CPU
# and three for the emulated GPU, with little optimization. OP=gelu runs only that benchmark, built as for `make bench`.
SMOKED := $(filter-out %/cpu_steps,$(BENCH))
SMOKE_PARTS    := $(if $(OP),,$(patsubst %,joined_%-of-3,1 2 3))
SMOKE_HOST     := $(if $(OP),$(SMOKED),$(SMOKE_PARTS:%=$(O)/bench/%))
SMOKE_EMULATED := $(if $(OP),$(EMULATED_BENCH),$(SMOKE_PARTS:%=$(E)/bench/%))
$(O)/dev/bench/joined_%.cpp: FILES = $(SMOKED:$(O)/bench/%=dev/bench/%.cu)
$(E)/dev/bench/joined_%.cu: FILES = $(EMULATED_BENCH:$(E)/bench/%=dev/bench/%.cu)
$(O)/dev/bench/joined_%.cpp: FORCE
	$(call write_joined,--main)
$(E)/dev/bench/joined_%.cu: FORCE
	$(call write_joined,--main)
$(O)/bench/joined_%: $(O)/dev/bench/joined_%.cpp.o $(TEST_ENGINE)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(COMPILE) $^ -o $@ $(LDFLAGS)
$(SMOKE_PARTS:%=$(O)/dev/bench/%.cpp.o) $(SMOKE_PARTS:%=$(E)/dev/bench/%.cu.o): private override OPT := $(LIGHT) $(TRUSTED)

run-bench-smoke: $(SMOKE_HOST) $(filter %/cpu_steps,$(BENCH)) $(SMOKE_EMULATED)
	@set -e; rm -f $(O)/bench-smoke.jsonl; for bench in $(SMOKE_HOST) $(filter %/cpu_steps,$(BENCH)) $(SMOKE_EMULATED); do \
	  $$bench --smoke --json $(O)/bench-smoke.jsonl; done; \
	for bench in $(SMOKE_HOST); do $$bench --smoke --bf16 --json $(O)/bench-smoke.jsonl; done; \
	for bench in $(SMOKE_EMULATED); do $$bench --smoke --fp32 --json $(O)/bench-smoke.jsonl; done; \
	python3 dev/results/perf_table.py --validate $(O)/bench-smoke.jsonl
