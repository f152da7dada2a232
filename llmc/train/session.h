/*
A training run under way: the model with its optimizer, and all that is done with them besides the steps themselves:
looking at the model, saving, stopping, and telling of it. When each is due, the loop in train_gpt.cu decides.

  const std::unique_ptr<Session> session = backend->open_session(world, request);
  while (!session->done()) {
      if (session->due(every)) session->validate();
      session->train_step();
  }
  session->finish();

A device may have two steps under way, but nobody sees that: done() waits for both before anything that is due, and a
model is looked at, and saved, only between steps.
*/
#pragma once
#include <cstdint>
#include <string>
#include "llmc/base/check.h"        // Error
#include "llmc/train/run_config.h"  // RunConfig
#include "llmc/train/summary.h"     // RunSummary

class Session {
public:
    virtual ~Session() = default;

    virtual const RunConfig& config() const = 0;

    // Is the run over: all its steps, its time, or was it told to stop? With the command `eval` it is, from the start.
    // All ranks; may throw, as train_step() does.
    virtual bool done() = 0;
    // After done(): is something due that is wanted every so many steps (0: never)? After a resume it is due again, as
    // a run that was told to stop did not wait for that.
    virtual bool due(int64_t every) const = 0;
    // An Error if the loss was not finite for too long, if the data cannot be read, or if a rank is gone.
    virtual void train_step() = 0;

    // What the run does not have (validation data, tasks, a prompt, other ranks) is passed over.
    virtual void compare_ranks() = 0;
    virtual void save() = 0;        // unless the state is that of a checkpoint already, or may be ruined
    virtual void save_local() = 0;  // the same to the hosts' own disks (local_saving.h)
    virtual void validate() = 0;    // and saves with --save-best, if the loss is the lowest so far
    // Have --patience validations in a row found no lower loss?
    virtual bool is_out_of_patience() const = 0;
    virtual void score_tasks() = 0;
    virtual void show_sample() = 0;

    // Looks at the last state and saves it. A run that was told to stop is saved only.
    virtual void finish() = 0;
    // The run ends by this error: saves the last step that is over, if that is whole and all ranks know of the error.
    virtual void save_before(const Error& error) = 0;

    // What the run has come to so far. `total_s`: since the program was started.
    virtual RunSummary summary(double total_s) const = 0;
    // Why the run is over, after done(): "finished", "time budget", "patience", a signal.
    virtual std::string end_reason() const = 0;
};
