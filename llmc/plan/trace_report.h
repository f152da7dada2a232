/*
A predicted step for people and for viewers: where its time goes, launch by launch.

  std::puts(launch_table(trace, time, gpu, 10).c_str());          the ten names that take most of a step
  write_file(path, predicted_chrome_trace(trace, time, gpu, "{}"));     for Perfetto or chrome://tracing
*/
#pragma once
#include <string>
#include "llmc/plan/gpu_model.h"   // StepTime
#include "llmc/plan/step_trace.h"  // StepTrace

// The name that launches are grouped by: a kernel's name, or a GEMM's shape.
std::string launch_name(const TracedWork& work);

// One line per name, sorted by time per step; `most` lines, or all for 0.
std::string launch_table(const StepTrace& trace, const StepTime& time, const Gpu& gpu, size_t most);

// The launches that take longer than the goals allow, the most costly first, each with the model's reason.
std::string limits_text(const StepTrace& trace, const StepTime& time);

// The parts of a step in one line: "GEMMs 71 %, attention 14 %, ...".
std::string parts_text(const StepTrace& trace, const StepTime& time);

// The second recorded step as JSON: one event per launch, with all that is known of it in args. `facts`: a JSON object
// that becomes otherData.
std::string predicted_chrome_trace(const StepTrace& trace, const StepTime& time, const Gpu& gpu,
                                   const std::string& facts);
