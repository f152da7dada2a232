/*
Turns a request into a run: tokenizer, model, sharding, communicator, batch. It allocates only the device memory that
communication needs, and writes no file; --dry-run ends here.

  const PreparedRun<Device, T> run = prepare<T>(device, world, request);          all ranks; the same on each
  const KernelFacts kernels = settle_kernels(device, run, ranks, data, head_rows);     once the inputs are open
*/
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include "llmc/base/hash.h"            // hex64, xxh3
#include "llmc/comm/handshake.h"       // check_alike
#include "llmc/interop/adapter.h"      // splits_adapters
#include "llmc/optim/sharding.h"       // plan_sharding
#include "llmc/run/run_config.h"       // RunConfig, decide
#include "llmc/train/devices.h"        // make_comm, check_heads, plan_kernels
#include "llmc/train/memory_budget.h"  // MemoryBudget
#include "llmc/train/run_inputs.h"     // RunInputs, separator_of, choose_packing
#include "llmc/train/run_request.h"    // RunRequest, find_shape
#include "llmc/train/tokens.h"         // KnownTokenizer, check_tokens
#include "llmc/train/world.h"          // World

template <class Device, class T>
struct PreparedRun {
    KnownTokenizer tokenizer;
    RunConfig config;
    ParameterList parameters;
    ShardingPlan sharding;
    std::unique_ptr<Comm<Device>> comm;
    MemoryBudget<Device, T> memory;
};

// Returns make()'s value. If it throws an Error on one rank, all ranks throw it. Collective.
template <class Make>
auto on_all_ranks(World& world, Make&& make) {
    std::optional<decltype(make())> result;
    share_errors(world.ranks, [&] { result.emplace(make()); });
    return std::move(*result);
}

// Throws an Error if ranks of this device must have equal shares.
template <class Device>
void check_shares(const Device&, const Decision& decision) {
    require(!Device::kAsynchronous || decision.shares.empty(),
            "ranks with GPUs have equal shares of a step: give --balance equal, and all the same --batch-size");
}

template <class T, class Device>
PreparedRun<Device, T> prepare(Device& device, World& world, const RunRequest& request) {
    RunFlags flags = request.flags;
    KnownTokenizer tokenizer = on_all_ranks(world, [&] {
        // Checked first: if the data is missing, the tokenizer beside it is missing, too. A plan needs no default data.
        if (flags.trains() && (!flags.dry_run || flags.sources.contains("train-data")))
            for (const DataSource& source : data_sources(flags.train_data))
                open_shards(source.pattern, fetch_config(flags));
        KnownTokenizer found(request);
        check_tokens(request, found, world.is_first());
        return found;
    });
    // Document masking, so that conversations in the same row do not see each other.
    if (flags.packing_mode() == Packing::pad && !flags.document_token && separator_of(flags, tokenizer) >= 0) {
        flags.document_token = separator_of(flags, tokenizer);
        flags.sources["document-token"] = "--packing pad";
    }
    const std::string& json = tokenizer.json;
    check_alike(world.ranks, {{"the tokenizer", json.empty() ? "none" : hex64(xxh3(json.data(), json.size()))}});
    const GptShape shape = on_all_ranks(world, [&] {
        const bool is_assumed = flags.dry_run && assumes_vocabulary(flags) && !request.resumed() && !request.source;
        GptShape found = find_shape(request, is_assumed ? kDepthVocabSize : tokenizer.vocab_size());
        found.lora = flags.lora(), found.lora.is_split = splits_adapters(found);
        check_lora(found);
        check_heads<T>(device, found);
        if (flags.trains()) tokenizer.find_facts(request, found.max_seq_len);
        return found;
    });
    share_errors(world.ranks, [&] {
        const int islands = flags.islands_of_run();
        if (islands > 0) world.island = std::make_shared<IslandRanks>(world.ranks, islands);
    });
    share_errors(world.ranks, [&] {
        require(!flags.lean() || !flags.trains() || sizeof(T) < sizeof(float),
                "--memory lean rounds weights to bf16, and with --dtype %s they are fp32 here: give --dtype bf16",
                flags.dtype.c_str());
    });
    ParameterList parameters(shape);
    ShardingPlan sharding = plan_sharding(parameters, sharding_options(flags, world.together().world_size));
    parameters.place(sharding.offsets, sharding.buffer_size);

    check_alike(world.ranks, {{"the device", kind_of(device)},
                              {"the communication library", comm_version(device)},
                              {"the type of weights", type_name<T>()}});
    std::unique_ptr<Comm<Device>> comm = make_comm(world, device, flags);
    share_errors(world.ranks, [&] {
        if (sharding.shards == sharding.world_size) return;
        require(flags.gradient_sum() != GradientSum::all_to_all,
                "--grad-sum %s does not shard in two levels: leave it or --shard-ranks out", flags.grad_sum.c_str());
        comm->split(sharding.shards);
    });
    comm->warm_up(comm->takes_all_to_all(
        flags.gradient_sum(),
        flags.bf16_gradients()));  // before free memory is measured: NCCL's buffers are hundreds of MiB
    const bool makes_samples = flags.trains() && tokenizer.tokenizer && flags.sample_tokens > 0;
    MemoryBudget<Device, T> memory(device, world, flags, makes_samples, parameters, sharding, *comm);

    std::vector<int> batch_sizes;  // each rank's --batch-size, on rank 0
    for (const std::string& record : world.ranks.gather(Ranks::bytes_of(flags.batch_size.value_or(-1))))
        batch_sizes.push_back(
            world.is_first() ? world.ranks.value_of<int>(record, int(batch_sizes.size()), "its --batch-size") : 0);
    Decision decision;
    on_first_rank(world.ranks, [&] {
        const std::string packing =
            choose_packing(flags, !request.resumed(), separator_of(flags, tokenizer), flags.seq_len(shape));
        const auto fits = [&](const StepConfig& step) { return memory.fits(step); };
        const auto speed = [&](const RunFlags& with) {
            return request.predict(with, shape, world.ranks.world_size, kind_of(device));
        };
        const bool is_predicted = Device::kAsynchronous && sizeof(T) == 2 && request.predict;
        decision =
            decide(flags, shape, world.ranks.world_size, fits, batch_sizes, is_predicted ? Speed(speed) : nullptr);
        decision.derivation += packing;
        check_shares(device, decision);
    });
    decision = received(world.ranks.broadcast(text_of(decision)), flags);
    RunConfig config(decision, shape, world.ranks.world_size, world.ranks.rank);
    memory.settle_offload(config.recipe.rules, config.step);
    share_errors(world.ranks, [&] {
        if (!flags.fp8()) return;
        check_fp8_device(device, "--dtype fp8");
        if (flags.mx()) check_mx_device(device, "--fp8-scaling mx");
        check_fp8_model(shape, config.step.B, config.step.T, flags.mx());
    });
    return {std::move(tokenizer), std::move(config), std::move(parameters),
            std::move(sharding),  std::move(comm),   std::move(memory)};
}

// Plans the steps' kernels and reserves the ops' workspace. Throws an Error on all ranks unless all have the same
// kernels and the same data. Collective.
template <class Device, class T>
KernelFacts settle_kernels(Device& device, const PreparedRun<Device, T>& run, Ranks& ranks, const RunInputs& data,
                           int64_t head_rows) {
    const RunConfig& config = run.config;
    KernelFacts kernels;
    share_errors(ranks, [&] {
        kernels =
            plan_kernels<T>(device, config.shape, config.step.B, config.step.T, config.flags.document_token.has_value(),
                            config.flags.trains(), config.flags.lengths());
    });
    const bool one_size = have_one_batch_size(config.shares);
    check_same_data(ranks, "the training data", data.train);
    check_same_data(ranks, "the validation data", data.val);
    check_alike(ranks, {{"the kernels of attention", kernels.attention},
                        {"the rows of logits at a time", one_size ? std::to_string(head_rows) : "own"},
                        {"the files of --eval-tasks", data.hash_of_tasks()}});
    device.reserve_workspace(run.memory.workspace(config.step.B));
    return kernels;
}
