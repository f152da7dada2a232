/*
Each rank's share of a run's steps (shares.h) over time: adjusted by --balance auto, read from another run's log
(--balance FILE.jsonl), or fixed, unless steps grow (RunConfig::stages).

  RunBalance<Device, T> balance(world, config);            all ranks; reads --balance's log before the run writes one
  balance.begin(step, saved, train, stepper, log);         all ranks, once state and data have their initial values
  balance.before_step(step);                               all ranks, between steps
  balance.step(ms);                                        after a step: the time of this rank's micro-batches
  balance.shares(), balance.saved()                        the current shares; the text for a checkpoint
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>
#include "llmc/base/check.h"      // require, ensure
#include "llmc/comm/ranks.h"      // Ranks, on_first_rank, share_errors
#include "llmc/data/loader.h"     // DataLoader
#include "llmc/run/log.h"         // RunLog
#include "llmc/run/run_config.h"  // RunConfig
#include "llmc/run/shares.h"      // Shares, Balancer, divisions_in
#include "llmc/train/step.h"      // Stepper
#include "llmc/train/world.h"     // World

template <class Device, class T>
class RunBalance {
public:
    RunBalance(World& world, const RunConfig& config)
        : world_(world), ranks_(world.ranks), config_(config), shares_(config.shares) {
        if (mode().kind == BalanceMode::Kind::followed && !world.is_alone()) read_divisions();
    }

    // `saved`: the shares from the checkpoint, with which a resumed run continues if it has the same number of ranks.
    void begin(int64_t step, const std::string& saved, DataLoader& train, Stepper<Device, T>& stepper, RunLog& log) {
        train_ = &train, stepper_ = &stepper, log_ = &log;
        if (world_.is_alone()) return;
        if (mode().kind == BalanceMode::Kind::automatic) {
            if (const std::vector<int64_t> before = numbers_in(saved); is_division(before)) assign(before);
            share_errors(ranks_, [&] { balancer_ = std::make_unique<Balancer>(ranks_, micro_batches_of(shares_)); });
            if (world_.is_first() && sequences_of(shares_) == int64_t(shares_.size()) * shares_[0].batch_size)
                std::printf(
                    "--balance auto: each rank has one micro-batch, and none can be moved: a smaller "
                    "--batch-size divides a step into more\n");
        }
        const auto next = divisions_.upper_bound(step);
        if (next != divisions_.begin()) assign(std::prev(next)->second);
        if (!are_equal(shares_) || !mode().is_equal()) log_shares(step, std::vector<double>(shares_.size(), NAN));
    }

    // All ranks follow rank 0's decision.
    void before_step(int64_t step) {
        if (const StepConfig& how = config_.step_at(step); &how != now_) {
            now_ = &how;
            for (Share& share : shares_) share.micro_batches = how.accumulation;
            train_->assign(how.accumulation, 0, 0);
            stepper_->assign(how);
        }
        if (const auto found = divisions_.find(step); found != divisions_.end()) {
            if (micro_batches_of(shares_) == found->second) return;
            assign(found->second);
            return log_shares(step, std::vector<double>(shares_.size(), NAN));
        }
        if (!balancer_ || !balancer_->is_due() || !balancer_->look()) return;
        assign(balancer_->micro_batches());
        log_shares(step, balancer_->ms());
        if (world_.is_first())
            std::printf("balance: %s, after step %ld (%s)\n", text_of(shares_, config_.step.T).c_str(), step,
                        balancer_->text().c_str());
    }

    void step(double ms) {
        if (balancer_) balancer_->step(ms);
    }

    const Shares& shares() const { return shares_; }
    // The number of sequences of each rank in a step.
    std::vector<int64_t> sequences() const {
        std::vector<int64_t> all;
        for (const Share& share : shares_) all.push_back(share.sequences());
        return all;
    }
    // The value for RunState::micro_batches.
    std::string saved() const { return balancer_ ? list_text(balancer_->micro_batches()) : ""; }
    // Advice about a slow rank: the rest of a sentence.
    std::string advice() const {
        if (Device::kAsynchronous) return "";
        if (balancer_) return "; micro-batches of fewer sequences (--batch-size) can be divided more evenly";
        return config_.flags.may_balance() ? "; --balance auto gives it less to do" : "";
    }

private:
    World& world_;
    Ranks& ranks_;
    const RunConfig& config_;
    Shares shares_;                                      // the current ones
    std::unique_ptr<Balancer> balancer_;                 // only with --balance auto
    std::map<int64_t, std::vector<int64_t>> divisions_;  // --balance FILE, by the step after which they hold
    const StepConfig* now_ = &config_.step;              // how the last step was
    DataLoader* train_ = nullptr;
    Stepper<Device, T>* stepper_ = nullptr;
    RunLog* log_ = nullptr;

    BalanceMode mode() const { return config_.flags.balance_mode(); }

    // Whether it fits this run: the same number of ranks and of micro-batches.
    bool is_division(const std::vector<int64_t>& micro_batches) const {
        const auto all = [](const std::vector<int64_t>& numbers) {
            return std::accumulate(numbers.begin(), numbers.end(), int64_t(0));
        };
        return micro_batches.size() == shares_.size() && all(micro_batches) == all(micro_batches_of(shares_)) &&
               *std::min_element(micro_batches.begin(), micro_batches.end()) > 0;
    }

    // Reads the divisions of another run with the same number of ranks and micro-batches.
    void read_divisions() {
        const std::string& path = config_.flags.balance;
        std::string text;
        on_first_rank(ranks_, [&] {
            for (const auto& [step, micro_batches] : divisions_in(path)) {
                require(
                    is_division(micro_batches),
                    "--balance %s: it has the micro-batches %s after step %ld, and this run begins with %s: expected "
                    "as many ranks, and the same sum",
                    path.c_str(), list_text(micro_batches).c_str(), step, list_text(micro_batches_of(shares_)).c_str());
                text += std::to_string(step) + ":" + list_text(micro_batches) + "\n";
            }
        });
        std::istringstream lines(ranks_.broadcast(text));
        for (std::string line; std::getline(lines, line);) {
            const std::vector<int64_t> micro_batches = numbers_in(line.substr(line.find(':') + 1));
            ranks_.require_sense(is_division(micro_batches), 0, "the divisions of --balance");
            divisions_[std::strtoll(line.c_str(), nullptr, 10)] = micro_batches;
        }
    }

    // Between steps: sets each rank's number of micro-batches from now on.
    void assign(const std::vector<int64_t>& micro_batches) {
        for (size_t r = 0; r < shares_.size(); r++) shares_[r].micro_batches = micro_batches[r];
        const int64_t sequences = sequences_of(shares_), first = first_sequence(shares_, ranks_.rank);
        const int64_t own = shares_[size_t(ranks_.rank)].micro_batches;
        ensure(sequences == config_.step.sequences());
        train_->assign(own, sequences, first);
        stepper_->assign(own, sequences, first);
    }

    void log_shares(int64_t step, const std::vector<double>& ms) {
        log_->balance(step, micro_batches_of(shares_), sequences(), ms);
    }
};
