package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	deviceplugin "remuda/device-plugin"
)

// host is what the kernel says of GPUs beside NVML. Its root is "/" outside of
// tests.
type host struct{ root string }

func (h host) read(path string) string {
	raw, err := os.ReadFile(filepath.Join(h.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// numaNode is the NUMA node of a PCI device; empty where the kernel knows none.
// NVML has no say in it: nvmlDeviceGetNumaNodeId names the node that a GPU's
// own memory is (on GH200 and the like), not the one that it is attached to.
func (h host) numaNode(busID string) string {
	text := h.read("sys/bus/pci/devices/" + deviceplugin.SysfsBusID(busID) + "/numa_node")
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return text
	}
	return ""
}

// gpuNode is the device file of a GPU.
func gpuNode(minor int) string {
	if minor < 0 {
		return ""
	}
	return fmt.Sprintf("/dev/nvidia%d", minor)
}

// instanceNodes are the device files of a MIG instance: its GPU's, and those by
// which the driver grants access to the instance. The driver lists their
// numbers below /proc.
func (h host) instanceNodes(minor int, in Instance) string {
	nodes := []string{gpuNode(minor)}
	dir := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/", minor, in.GI)
	for _, file := range []string{dir + "access", dir + fmt.Sprintf("ci%d/access", in.CI)} {
		for line := range strings.SplitSeq(h.read(file), "\n") {
			if n, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
				nodes = append(nodes, "/dev/nvidia-caps/nvidia-cap"+strings.TrimSpace(n))
			}
		}
	}
	return strings.Join(nodes, ",")
}

// boot identifies the time since the machine was started.
func (h host) boot() string { return h.read("proc/sys/kernel/random/boot_id") }

// driverLoad identifies one load of the kernel driver: the number of its directory in sysfs, which
// the kernel gives to one thing only for as long as it runs. It is empty where sysfs has no driver.
func (h host) driverLoad() string {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(h.root, "sys/module/nvidia"), &st); err != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// drivers lists the GPUs that the driver has taken, in a form that changes
// when one comes or goes.
func (h host) drivers() string {
	entries, err := os.ReadDir(filepath.Join(h.root, "proc/driver/nvidia/gpus"))
	if err != nil {
		return ""
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return strings.Join(names, ",")
}
