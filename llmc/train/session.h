/*
A running training job: the model with its optimizer, its steps, and everything else: evaluation, saving, stopping,
logging. The loop in train_gpt.cu decides when each is due.

  const std::unique_ptr<Session> session = backend->open_session(world, request);
  while (!session->done()) {
      if (session->due(every)) session->validate();
      session->train_step();
  }
  session->finish();

A device may have two steps in flight, but callers do not see that: done() waits for both before anything that is due,
and a model is evaluated and saved only between steps.
*/
#pragma once
#include <cstdint>
#include "llmc/base/check.h"      // Error
#include "llmc/run/run_config.h"  // RunConfig

class Session {
public:
    virtual ~Session() = default;

    virtual const RunConfig& config() const = 0;
    // Whether the run is over: all steps done, time used up, or told to stop. With the command `eval` it is from the
    // start. All ranks; may throw, as train_step() does.
    virtual bool done() = 0;
    // After done(): whether something wanted every so many steps (0: never) is due. After a resume it is due again,
    // because a run that was told to stop skips it.
    virtual bool due(int64_t every) const = 0;
    // Throws an Error if the loss was not finite for too long, if the data cannot be read, or if a rank is lost.
    virtual void train_step() = 0;

    // These do nothing if the run lacks what they need: validation data, tasks, a prompt, other ranks.
    virtual void compare_ranks() = 0;
    virtual void save() = 0;      // unless the step is saved already, or its weights may be ruined (skipped steps)
    virtual void validate() = 0;  // with --save-best also saves, if the loss is the lowest so far
    // Whether --patience validations in a row found no lower loss.
    virtual bool is_out_of_patience() const = 0;
    // Whether a signal to any rank asks the run to end. It may have ended a validation or a scoring, so there must not
    // be another step before done(): after a resume they are due again.
    virtual bool is_told_to_stop() const = 0;
    virtual void score_tasks() = 0;
    virtual void show_sample() = 0;

    // Evaluates the last state and saves it. A run that was told to stop is only saved. Then --summary and --results.
    virtual void finish() = 0;
    // The run ends by this error: saves the last finished step, if its state is complete and all ranks know of the
    // error. Then --results.
    virtual void fail(const Error& error) = 0;
};
