// Built without MPI: ranks on the CPU are of one host.
#include "llmc/base/check.h"  // require
#include "llmc/comm/mpi_network.h"

std::unique_ptr<HostNetwork> make_mpi_network() {
    require(false,
            "the ranks are on several hosts, and on the CPU only MPI connects these: this build has none. Install "
            "libopenmpi-dev or set MPI_HOME and build again (make info shows what was found)");
    return nullptr;
}
