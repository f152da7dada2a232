/*
From what was asked to what will be run: which text, which model, who owns what of it, over what ranks exchange it, how
much of it in a step. Of the device's memory only what the exchange itself needs is taken, and no file is written;
--dry-run ends here.

  const Setup<Device, T> setup(device, world, start);
  RunData data(setup, world);                 the batches; a run that does not fit ends here
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "llmc/comm/handshake.h"     // check_alike
#include "llmc/data/loader.h"        // DataLoader
#include "llmc/data/token_scan.h"    // TokenScan
#include "llmc/data/tokenizer.h"     // Tokenizer
#include "llmc/eval/task_file.h"     // TaskFile
#include "llmc/model/kv_cache.h"     // KvCache
#include "llmc/optim/optimizer.h"    // Optimizer
#include "llmc/optim/sharding.h"     // plan_sharding
#include "llmc/train/devices.h"      // make_comm, plan_kernels, workspace_bytes
#include "llmc/train/memory_plan.h"  // memory_plan, check_fits
#include "llmc/train/resolve.h"      // resolve
#include "llmc/train/start.h"        // Start, find_shape
#include "llmc/train/step.h"         // Stepper, StepConfig
#include "llmc/train/tokens.h"       // KnownTokenizer, check_tokens
#include "llmc/train/world.h"        // World

// The most of a micro-batch on the CPU, in the memory that it may use: where it fits into a processor's caches, larger
// ones are no faster.
inline constexpr int64_t kCpuBatchTokens = 4096;

// The same on all ranks.
template <class Device, class T>
class Setup {
public:
    KnownTokenizer text;
    GptShape shape;
    int64_t seq_len;
    ParameterList list;
    ShardingPlan plan;
    std::unique_ptr<Comm<Device>> comm;
    ResolvedRun run;
    StepConfig how;

    Setup(Device& device, World& world, const Start& start)
        : text(on_all(world,
                      [&] {
                          // First: without it there is no tokenizer beside it either.
                          if (!start.config.eval_only) open_shards(start.config.train_data);
                          KnownTokenizer found(start);
                          check_tokens(start, found, world.is_first());
                          return found;
                      })),
          shape(on_all(world,
                       [&] {
                           const GptShape found = find_shape(start, text.vocab_size());
                           check_heads<T>(device, found);
                           return found;
                       })),
          seq_len(start.config.seq_len(shape)),
          list(shape),
          plan(plan_sharding(list, {.world_size = world.ranks.world_size, .muon = start.config.chosen_recipe().muon})),
          device_(device),
          document_token_(start.config.document_token),
          fp8_(start.config.fp8()),
          learns_(!start.config.eval_only),
          optimizer_bytes_(
              Optimizer<Device, T>::memory_bytes(plan, world.ranks.rank, start.config.chosen_recipe().rules)),
          sample_bytes_(learns_ && text.tokenizer && start.config.sample_tokens > 0
                            ? KvCache<Device, T>::bytes(shape, whole_windows(), 1, seq_len, seq_len)
                            : 0) {
        list.place(plan.offsets, plan.buffer_size);
        check_alike(world.ranks, {{"the device", kind_of(device)},
                                  {"the library of exchange", exchange_version(device)},
                                  {"the type of weights", type_name<T>()}});
        comm = make_comm(world, device, start.config);
        comm->warm_up();  // before what is free is measured: NCCL's buffers are hundreds of MiB
        struct Memory {
            size_t available, limit;
        } least{free_memory(device),
                memory_limit(device, world.group ? world.group->world_size : world.place().processes)};
        // Of the rank that has least: all take the same batch.
        for (const Memory& other : world.ranks.all_gather_values(least, "its free memory"))
            least = {std::min(least.available, other.available), std::min(least.limit, other.limit)};
        available_ = least.available;
        limit_ = least.limit;
        // No batch is so large that the head would be slow.
        const auto fits = [&](const StepConfig& step) {
            const size_t bytes = head_plan(step, start.config.recompute_mode(), kGpuHeadRows).memory.total_bytes();
            return (available_ > 0 || step.B * step.T <= kCpuBatchTokens) && (limit_ == 0 || bytes <= limit_);
        };
        run = on_all(world, [&] { return resolve(start.config, shape, world.ranks.world_size, fits); });
        how = run.config.step(seq_len, world.ranks.world_size);
        share_errors(world.ranks, [&] {
            if (!fp8_) return;
            check_fp8_device(device, "--dtype fp8");
            check_fp8_model(shape, how.B, how.T);
        });
    }

    const TrainConfig& config() const { return run.config; }
    Passes passes() const {
        const Recompute recompute = config().recompute_mode();
        return {recompute, fp8_, head_plan(how, recompute, kLeastHeadRows).head_rows};
    }
    const Recipe& recipe() const { return run.recipe; }

    // What documents begin with; -1: nobody has said.
    int document_token() const {
        if (config().document_token >= 0 || !text.tokenizer) return config().document_token;
        return text.tokenizer->separator();
    }

    // Of the model's ops.
    size_t workspace(int64_t B) const {
        return workspace_bytes<T>(device_, shape, B, seq_len, document_token_ >= 0, learns_);
    }
    KernelFacts plan_kernels() const {
        return ::plan_kernels<T>(device_, shape, how.B, seq_len, document_token_ >= 0, learns_);
    }
    MemoryPlan memory(const StepConfig& step, Recompute recompute) const {
        return head_plan(step, recompute, kLeastHeadRows).memory;
    }
    // What a rank may take at most; 0: not known.
    size_t memory_bytes() const { return limit_; }

private:
    Device& device_;
    int document_token_;
    bool fp8_, learns_;
    size_t optimizer_bytes_, sample_bytes_;
    size_t available_ = 0;  // 0: not known
    size_t limit_ = 0;      // the same, or of a CPU, whose memory is never full, its share of the host's

    std::vector<int64_t> whole_windows() const {
        return layer_windows(shape.architecture, shape.num_layers, shape.max_seq_len);
    }
    HeadPlan head_plan(const StepConfig& step, Recompute recompute, int64_t least) const {
        const int64_t most = device_.head_rows(step.B * seq_len, shape.padded_vocab_size(), sizeof(T));
        const size_t more = Stepper<Device, T>::more_gradient_bytes(list, step), ops = workspace(step.B);
        return plan_head_rows(most, std::min(most, least), available_ == 0 ? SIZE_MAX : available_,
                              [&](int64_t head_rows) {
                                  MemoryPlan plan = memory_plan<T>(list, optimizer_bytes_, more, step.B, seq_len,
                                                                   {recompute, fp8_, head_rows}, ops, sample_bytes_);
                                  plan.lines.push_back({"left free", "for libraries", memory_margin(device_)});
                                  plan.taken_bytes = comm->taken_bytes();
                                  return plan;
                              });
    }

    // What one rank throws, all throw.
    template <class F>
    static auto on_all(World& world, F&& f) {
        std::optional<decltype(f())> result;
        share_errors(world.ranks, [&] { result.emplace(f()); });
        return std::move(*result);
    }
};

// What is read while a run goes on.
struct RunData {
    std::optional<DataLoader> train, val;  // without the first there is nothing to learn from: --eval-only
    std::vector<int32_t> prompt, token_bytes;
    std::vector<TaskFile> tasks;
    std::optional<TokenScan> scan;  // of the shards of a run that learns; last, because it reads them

    uint64_t train_hash() const { return train ? train->data_hash() : 0; }
    double cropped() const { return train ? train->cropped() : NAN; }  // DataLoader::cropped()

    template <class Device, class T>
    RunData(const Setup<Device, T>& setup, World& world) {
        const TrainConfig& config = setup.config();
        LoaderConfig loader{.pattern = config.train_data,
                            .batch_size = int(setup.how.B),
                            .seq_len = int(setup.seq_len),
                            .rank = world.ranks.rank,
                            .world_size = world.ranks.world_size,
                            .batches_per_step = setup.how.accumulation,
                            .shuffle = config.shuffle,
                            .seed = config.seed,
                            .vocab_size = int(setup.shape.vocab_size),
                            .packing = config.packing_mode(),
                            .document_token = setup.document_token()};
        share_errors(world.ranks, [&] {
            check_fits(setup.how.B, config.recompute_mode(), setup.memory_bytes(),
                       [&](int64_t batch_size, Recompute recompute) {
                           StepConfig other = setup.how;
                           other.B = batch_size;
                           return setup.memory(other, recompute);
                       });
            if (!config.eval_only) train.emplace(loader);
            loader.pattern = config.val_data, loader.shuffle = false, loader.batches_per_step = 1;
            if (!config.val_data.empty()) val.emplace(loader);
            for (const std::string& path : config.task_files())
                tasks.emplace_back(path).check(setup.shape.vocab_size, setup.seq_len);
            const std::optional<Tokenizer>& tokenizer = setup.text.tokenizer;
            if (tokenizer) token_bytes = tokenizer->token_bytes();
            if (tokenizer && config.sample_tokens > 0) prompt = tokenizer->encode(config.prompt, "--prompt");
        });
        if (!train) return;
        std::vector<const std::vector<TokenShard>*> sets = {&train->shards()};
        if (val) sets.push_back(&val->shards());
        scan.emplace(sets, loader.vocab_size, world.ranks.rank, world.ranks.world_size);
    }
};
