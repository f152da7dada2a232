// scripts/one_chip.py: copies a library with device code for several chips, keeps the code of one, and does not change
// the host's code.
#include <cstring>
#include "llmc/base/file.h"  // read_file, write_file_atomically
#include "test/testing.h"

namespace {

// A piece of device code in a container: 1 is PTX, 2 machine code; then the chip; 64 bytes of header.
std::string piece(uint16_t kind, uint32_t chip, const std::string& code) {
    std::string bytes(64, '\0');
    const uint16_t version = 0x101;
    const uint32_t header = 64;
    const uint64_t size = code.size();
    std::memcpy(&bytes[0], &kind, 2), std::memcpy(&bytes[2], &version, 2), std::memcpy(&bytes[4], &header, 4);
    std::memcpy(&bytes[8], &size, 8), std::memcpy(&bytes[28], &chip, 4);
    return bytes + code;
}

std::string container(const std::string& pieces) {
    std::string bytes(16, '\0');
    const uint32_t magic = 0xBA55ED50;
    const uint16_t version = 1, header = 16;
    const uint64_t size = pieces.size();
    std::memcpy(&bytes[0], &magic, 4), std::memcpy(&bytes[4], &version, 2), std::memcpy(&bytes[6], &header, 2);
    std::memcpy(&bytes[8], &size, 8);
    return bytes + pieces;
}

// A shared library with these bytes where CUDA's are, and a function that returns 7.
struct Library {
    ScratchFolder folder;
    std::string path = folder / "lib.so";

    explicit Library(const std::string& bytes, const char* section = ".nv_fatbin") {
        write_file_atomically(folder / "code.bin", bytes);
        write_file_atomically(folder / "lib.s",
                              std::string(".section ") + section + ",\"a\"\n.incbin \"" + folder / "code.bin" + "\"\n");
        write_file_atomically(folder / "lib.c", "int seven(void) { return 7; }\n");
        const Finished linked =
            run("${CXX:-g++} -shared -fPIC " + folder / "lib.s" + " -x c " + folder / "lib.c" + " -o " + path);
        INFO(linked.err);
        REQUIRE(linked.exit_code == 0);
    }
    Finished keep(int chip) const {
        return run("python3 -B scripts/one_chip.py " + path + " " + std::to_string(chip) + " " + folder / "copy.so");
    }
    std::string copy() const { return read_file(folder / "copy.so"); }
};

}  // namespace

TEST_CASE("one_chip keeps what a chip can run, alone, and zeros for the rest", "[one_chip]") {
    const std::string ptx = piece(1, 80, "ptx of 80"), code80 = piece(2, 80, "code of 80"),
                      code89 = piece(2, 89, "code of 89"), code90 = piece(2, 90, "code of 90");
    const std::string before = container(ptx + code80 + code89 + code90);
    const Library library(before + container(code90));
    const std::string original = read_file(library.path);
    const std::pair<int, std::string> cases[] = {
        {90, code90}, {89, code89}, {86, code80},
        {80, code80}, {100, ptx},  // a later generation runs no machine code of these
    };
    for (const auto& [chip, kept] : cases) {
        INFO(chip);
        const Finished finished = library.keep(chip);
        INFO(finished.err);
        REQUIRE(finished.exit_code == 0);
        const std::string copy = library.copy();
        REQUIRE(copy.size() == original.size());
        const size_t at = original.find(before);
        CHECK(copy.substr(0, at) == original.substr(0, at));
        std::string want = container(kept);
        want.resize(before.size());
        CHECK(copy.substr(at, before.size()) == want);
        // The second container has code for 90 alone.
        const std::string rest = copy.substr(at + before.size(), 16 + code90.size());
        CHECK((rest == container(code90)) == (chip == 90));
    }
    REQUIRE(library.keep(90).exit_code == 0);
    CHECK(run("python3 -c 'import ctypes; print(ctypes.CDLL(\"" + library.folder / "copy.so" + "\").seven())'").out ==
          "7\n");
    const Finished none = library.keep(75);
    CHECK(none.exit_code == 2);
    CHECK(contains(none.err, "no code for sm_75; it has sm_80, sm_89, sm_90"));
}

TEST_CASE("one_chip refuses what it does not know", "[one_chip]") {
    CHECK(contains(Library("nothing of CUDA's").keep(90).err, "it has none at all"));
    CHECK(
        contains(Library(container(piece(7, 90, "code"))).keep(90).err, "not the device code of a CUDA that is known"));
    const Library library("");
    write_file_atomically(library.path, "text");
    const Finished text = library.keep(90);
    CHECK(text.exit_code == 2);
    CHECK(contains(text.err, "not a 64-bit ELF file"));
    CHECK(run("python3 -B scripts/one_chip.py").exit_code == 2);
}
