/*
A predicted step for people and for viewers: where its time goes, launch by launch.

  std::puts(launch_table(trace, time, gpu, 10).c_str());          the ten that take most
  write_file(path, predicted_chrome_trace(trace, time, gpu, "{}"));     for Perfetto or chrome://tracing
*/
#pragma once
#include <string>
#include "llmc/trace/gpu_model.h"   // StepTime
#include "llmc/trace/step_trace.h"  // StepTrace

// What launches are grouped by: the kernel's name, of a GEMM its shape.
std::string launch_name(const TracedWork& work);

// A line for each name, those that take most of a step first; all of them with `most` 0.
std::string launch_table(const StepTrace& trace, const StepTime& time, const Gpu& gpu, size_t most);

// The launches that take longer than the goals allow, those that cost most first, each with the model's reason.
std::string limits_text(const StepTrace& trace, const StepTime& time);

// Parts of the step in a line: "GEMMs 71 %, attention 14 %, ...".
std::string parts_text(const StepTrace& trace, const StepTime& time);

// The second recorded step as JSON: an event for each launch, whose args have all that is known of it. `facts`: a JSON
// object that becomes otherData.
std::string predicted_chrome_trace(const StepTrace& trace, const StepTime& time, const Gpu& gpu,
                                   const std::string& facts);
