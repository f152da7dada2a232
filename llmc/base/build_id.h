/*
Which source this program was built from: `git describe --always --dirty`, or "unknown" outside of a checkout.
The Makefile passes it to build_id.cpp alone, so a new commit recompiles one tiny object.
*/
#pragma once

const char* build_id();
