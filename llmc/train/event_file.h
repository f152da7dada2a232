/*
Scalars for TensorBoard, in a file that it reads as it grows: OUT/events.out.tfevents.TIME.anvil.

  EventFile events(out_dir, 4001);                  a file of its own for each start of a run; 4001: the next step
  events.scalars(4001, {{"train/loss", 3.28}, {"train/lr", 6e-4}});

The format is TensorFlow's (its record writer, event.proto and summary.proto), without its libraries:

  record    length (uint64), its masked CRC, `length` bytes, their masked CRC; all little endian
  CRC       CRC-32C (Castagnoli), masked as ((crc >> 15) | (crc << 17)) + 0xa282ead8
  the bytes a protocol buffer, Event: 1 wall_time (double), 2 step (varint), and one of
              3 file_version = "brain.Event:2"                first in each file
              5 summary { 1 value { 1 tag, 2 simple_value (float) } ... }
              7 session_log { 1 status = START }              second: earlier files' events from this step on are void

Resumes: the files of a folder are one run, read in the order of their names. A new file has a later time in its name
than all existing ones, and TensorBoard drops what earlier files have from its first step on, as with TensorFlow's own
writers. A record cut short by a kill ends the reading of its file, not that of the next.

Each record is written at once, with one write. Throws an Error if that fails.
*/
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/file.h"  // FileWriter

using Scalars = std::vector<std::pair<std::string, double>>;  // with their tags

class EventFile {
public:
    // `first_step`: the first step of this process; earlier files' events from this step on are void.
    EventFile(const std::string& out_dir, int64_t first_step);

    // Writes the values of a step. Values that are not finite are written as they are, and shown as such.
    void scalars(int64_t step, const Scalars& values);

    // Removes all event files of this folder, for a fresh run.
    static void remove_all(const std::string& out_dir);

private:
    FileWriter file_;
    void record(const std::string& event);
};

// Of "123456789": e3069283.
uint32_t crc32c(const void* data, size_t bytes);
