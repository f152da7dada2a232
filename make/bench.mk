# Targets: bench, bench-cpu, bench-scaling, bench-smoke.

BENCHES := $(BENCH_FILES:dev/bench/%.cu=$(O)/bench/%)
BENCH := $(if $(OP),$(filter %/$(OP),$(BENCHES)),$(BENCHES))
# On the emulator: the benchmarks of ops with a kernel, and that of launches. None of them needs collectives.
EMULATED_BENCH := $(patsubst $(O)/%,$(E)/%,$(filter $(patsubst %.cuh,%,$(addprefix %/,$(notdir \
  $(wildcard llmc/cuda/*.cuh llmc/cuda/attention/*.cuh)))) %/launches,$(BENCH)))
# A smoke test measures nothing. So all benchmarks but cpu_steps, which has flags of its own, are joined into programs
# for the CPU and for the emulated GPU, with little optimization. OP=gelu runs only that one, built as for `make bench`.
SMOKED         := $(filter-out %/cpu_steps,$(BENCH))
bench_FILES    := $(SMOKED:$(O)/bench/%=dev/bench/%.cu)
emulated_FILES := $(EMULATED_BENCH:$(E)/bench/%=dev/bench/%.cu)
PARTS_bench    := $(PARTS_cuda)
PARTS_emulated := $(PARTS_cuda)
SMOKE_HOST     := $(if $(OP),$(SMOKED),$(PARTS_bench:%=$(O)/bench/joined_bench_%))
SMOKE_EMULATED := $(if $(OP),$(EMULATED_BENCH),$(PARTS_bench:%=$(E)/bench/joined_emulated_%))
$(O)/bench/%: $(O)/dev/bench/%.cu.o $(TEST_ENGINE)
	$(link)
$(E)/bench/%: $(E)/dev/bench/%.cu.o $(NO_COLLECTIVES) $(TEST_ENGINE)
	$(link)
# Their main() calls that of each file, up to the first that fails.
JOINED_BENCHES := $(PARTS_bench:%=$(O)/dev/bench/joined_bench_%.cu) \
  $(PARTS_bench:%=$(E)/dev/bench/joined_emulated_%.cu)
$(JOINED_BENCHES): private TEXT = files='$(part)'; $(call join_files,$$files); \
  echo 'int main(int count, char** words) { return'; printf '%s\n' $$files | \
  sed -E 's|.*/(.*).cu|  of_\1::main(count, words) ? 1 :|'; echo '0; }'
REWRITTEN += $(JOINED_BENCHES)

bench: $(BENCH) ## build and run the benchmarks; OP=gelu runs one
	$(if $(BENCH),,$(error no benchmark$(if $(OP), dev/bench/$(OP).cu; there are: $(notdir $(BENCHES)), in dev/bench)))
	@set -e; for bench in $(BENCH); do $$bench; done
bench-scaling: $(BIN)train_gpt ## tok/s of 1, 2, 4, ... ranks, into doc/performance.md; some minutes
	@python3 dev/results/bench_scaling.py --program $(or $(BIN),./)train_gpt $(BENCH_ARGS)
bench-cpu: ## a training step on the CPU, op by op, beside the machine's limits, into doc/performance.md; some minutes
	@+$(SUBMAKE) build/$(HOST_VARIANT)/bench/cpu_steps VARIANT=$(HOST_VARIANT)
	@python3 dev/bench/cpu_steps.py --program build/$(HOST_VARIANT)/bench/cpu_steps $(BENCH_ARGS)
bench-smoke: ## run every benchmark on tiny shapes, on the CPU and the emulated GPU
	@+$(SUBMAKE) run-bench-smoke VARIANT=$(HOST_VARIANT)
run-bench-smoke: $(SMOKE_HOST) $(filter %/cpu_steps,$(BENCH)) $(SMOKE_EMULATED)
	@rm -f $(O)/bench-smoke.jsonl; \
	  smoke() { for bench in $$2; do $$bench --smoke $$1 --json $(O)/bench-smoke.jsonl || exit; done; }; \
	  smoke '' '$^'; smoke --bf16 '$(SMOKE_HOST)'; smoke --fp32 '$(SMOKE_EMULATED)'; \
	python3 dev/results/perf_table.py --validate $(O)/bench-smoke.jsonl
