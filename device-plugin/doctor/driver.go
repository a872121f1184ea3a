package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/nvml"
)

// probePatience is how long one call of NVML may take. The plugin gives it more, but people wait here;
// a node's calls and those of its GPUs come one after the other, and all GPUs are read at once.
const probePatience = 1500 * time.Millisecond

// slowSeconds is how long the reading of a GPU may take; a loaded driver needs some tenths.
const slowSeconds = 2

func (r *round) path(parts ...string) string {
	return filepath.Join(append([]string{r.cfg.Root}, parts...)...)
}

func (r *round) read(path string) string {
	raw, err := os.ReadFile(r.path(path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// checkBus looks for NVIDIA's GPUs on the PCI bus: vendor 10de, class display
// (VGA 0300 or 3D 0302).
func (r *round) checkBus() {
	const check = "PCI bus"
	devices, err := os.ReadDir(r.path("sys/bus/pci/devices"))
	if err != nil {
		r.add(check, Warning, "cannot list it: "+err.Error(), "run this on the host itself, not in a container without /sys")
		return
	}
	var found []string
	for _, d := range devices {
		dir := filepath.Join("sys/bus/pci/devices", d.Name())
		class := r.read(filepath.Join(dir, "class"))
		if r.read(filepath.Join(dir, "vendor")) == "0x10de" && (strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302")) {
			found = append(found, d.Name())
		}
	}
	if len(found) == 0 {
		r.add(check, Problem, "no NVIDIA GPU found",
			"on a machine with GPUs check the firmware settings and lspci; in a virtual machine pass the GPUs through; on a machine without GPUs configure simulate blocks")
		return
	}
	r.add(check, OK, fmt.Sprintf("%d NVIDIA GPUs: %s", len(found), strings.Join(found, ", ")), "")
}

var versionPattern = regexp.MustCompile(`\b\d{3,}\.\d+(\.\d+)?\b`)

func (r *round) checkDriver() {
	const check = "kernel driver"
	text := r.read("proc/driver/nvidia/version")
	if text != "" {
		r.driver = versionPattern.FindString(text)
		r.add(check, OK, "version "+orUnknown(r.driver)+" is loaded", "")
		return
	}
	if _, err := os.Stat(r.path("sys/module/nouveau")); err == nil {
		r.add(check, Problem, "nouveau is loaded instead of NVIDIA's driver",
			"blacklist nouveau (modprobe.d: blacklist nouveau, options nouveau modeset=0), install NVIDIA's driver and reboot")
		return
	}
	r.add(check, Problem, "NVIDIA's driver is not loaded (no /proc/driver/nvidia/version)",
		"install NVIDIA's driver, or load it with modprobe nvidia and check dmesg; the plugin follows without a restart")
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func (r *round) checkDeviceFiles() {
	const check = "device files"
	const create = "nvidia-modprobe -u -c=0 (or nvidia-smi, as root) creates them"
	gpus, err := filepath.Glob(r.path("dev/nvidia[0-9]*"))
	if err != nil || len(gpus) == 0 {
		r.add(check, Problem, "/dev/nvidia0 is missing", create)
		return
	}
	var closed []string
	for _, f := range append(gpus, r.path("dev/nvidiactl")) {
		err := unix.Access(f, unix.R_OK|unix.W_OK)
		if errors.Is(err, os.ErrNotExist) {
			r.add(check, Problem, "/dev/nvidiactl is missing", create)
			return
		}
		if err != nil {
			closed = append(closed, fmt.Sprintf("%s: %v", strings.TrimPrefix(f, strings.TrimSuffix(r.cfg.Root, "/")), err))
		}
	}
	if len(closed) > 0 {
		r.add(check, Problem, fmt.Sprintf("user %d cannot open them: %s", os.Geteuid(), strings.Join(closed, "; ")),
			"run this as Nomad's user; if you did, give that user access to them (Nomad clients run as root)")
		return
	}
	if _, err := os.Stat(r.path("dev/nvidia-uvm")); err != nil {
		r.add(check, Warning, "/dev/nvidia-uvm is missing: the GPUs are visible but CUDA programs fail", create)
		return
	}
	r.add(check, OK, fmt.Sprintf("%d GPUs can be opened", len(gpus)), "")
}

// libraryDirs are where distributions and containers keep the driver's libraries.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib",
	"usr/local/nvidia/lib64", "usr/local/nvidia/lib", "run/nvidia/driver/usr/lib/x86_64-linux-gnu", "run/opengl-driver/lib",
}

// checkLibrary finds the library's file, to compare its version, which is part
// of its name, with the driver's.
func (r *round) checkLibrary() {
	const check = "NVML library"
	const name = "libnvidia-ml.so.1"
	file := ""
	if strings.Contains(r.cfg.Library, "/") {
		file = r.path(r.cfg.Library)
		if _, err := os.Lstat(file); err != nil {
			r.add(check, Problem, err.Error(), "correct or remove nvml_library in the plugin's configuration")
			return
		}
	} else {
		for _, dir := range libraryDirs {
			if _, err := os.Lstat(r.path(dir, name)); err == nil { // also a link that leads nowhere
				file = r.path(dir, name)
				break
			}
		}
	}
	if file == "" {
		r.add(check, Note, "not in the usual directories; only the linker knows where it is",
			"if NVML cannot be loaded: install the driver's libraries (libnvidia-ml1, nvidia-driver-NVML or similar), or set nvml_library")
		return
	}
	shown := "/" + strings.TrimPrefix(strings.TrimPrefix(file, r.cfg.Root), "/")
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		r.add(check, Problem, shown+": "+err.Error(), "install the driver's libraries again: the link is broken")
		return
	}
	version := versionPattern.FindString(filepath.Base(target))
	if version != "" && r.driver != "" && version != r.driver {
		r.add(check, Problem, fmt.Sprintf("%s has version %s and the loaded driver has version %s", shown, version, r.driver),
			"reboot, or stop every GPU program and reload the driver (rmmod and modprobe nvidia) to finish the upgrade")
		return
	}
	r.add(check, OK, shown+", version "+orUnknown(version), "")
}

// checkNVML goes through what the plugin's own worker found.
func (r *round) checkNVML(report nvml.Report, err error) {
	const check = "NVML"
	if err != nil && unsure(err.Error()) {
		r.add(check, Warning, err.Error(), remedyText(err.Error()))
		return
	}
	if err != nil {
		r.nvmlErr = err.Error()
		r.add(check, Problem, err.Error(), remedy(err))
		return
	}
	r.probed = true
	look := report.Look
	r.add(check, OK, fmt.Sprintf("driver %s, CUDA %s, %d GPUs", look.DriverVersion, orUnknown(look.CUDAVersion), len(look.Devices)), "")
	if len(look.Missing) > 0 {
		r.add("NVML functions", Note, "this library lacks "+strings.Join(look.Missing, ", ")+": the values that they return are unknown", "a newer driver has them")
	}
	for _, text := range look.Unnamed {
		r.add("GPU", badness(text), text, remedyText(text))
	}
	if len(look.Devices) == 0 && len(look.Unnamed) == 0 {
		r.add("GPU", Problem, "NVML lists no GPU", "check dmesg for the driver's reason")
	}
	for _, d := range look.Devices {
		r.checkDevice(d)
	}
}

// remedy says what to do about an NVML that cannot be used.
func remedy(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "different versions"):
		return "reboot, or stop every GPU program and reload the driver: the library and the driver must have the same version"
	case errors.Is(err, nvml.ErrNoDriver):
		return "load the driver (modprobe nvidia) and check dmesg"
	case strings.Contains(text, "cannot open shared object"):
		return "install the driver's libraries, or set nvml_library in the plugin's configuration to the library's path"
	case strings.Contains(text, "lacks"):
		return "set nvml_library to the driver's own libnvidia-ml.so.1 (not the stub that comes with the CUDA toolkit), or install a newer driver"
	case strings.Contains(text, "no permission"):
		return "run this as Nomad's user, and give that user access to /dev/nvidiactl"
	}
	return remedyText(text)
}

// remedyText says what to do about a GPU, or a node, that NVML cannot read.
func remedyText(text string) string {
	switch {
	case strings.Contains(text, "hangs in"), strings.Contains(text, "has not returned"):
		return "check dmesg for XIDs and blocked tasks: the driver waits for the GPU, and usually only a reboot helps. If dmesg shows nothing, the driver may be slow to wake its GPUs: enable nvidia-persistenced"
	case strings.Contains(text, "crashes"):
		return "the driver's library crashes: check dmesg for XIDs, compare with nvidia-smi, and install another driver version if it crashes too"
	case strings.Contains(text, nvml.Unfinished):
		return "run doctor again when the machine is less busy; if this stays, " + slowRemedy
	case strings.Contains(text, "is slow"):
		return slowRemedy
	}
	return "see dmesg for XIDs; reset the GPU (nvidia-smi -r) or reboot the node"
}

// unsure tells whether NVML only took longer than people wait here, without a call that was long: the plugin
// waits longer.
func unsure(text string) bool {
	return strings.Contains(text, nvml.Unfinished) || strings.Contains(text, "is slow")
}

// badness is the status of a GPU, or a node, that NVML cannot read.
func badness(text string) Status {
	if unsure(text) {
		return Warning
	}
	return Problem
}

const slowRemedy = "enable nvidia-persistenced, so that the driver need not wake the GPU each time; check dmesg for PCIe errors"

func (r *round) checkDevice(d nvml.Device) {
	check := "GPU " + d.UUID
	r.uuids = append(r.uuids, d.UUID)
	switch {
	case d.Lost || d.Err != "":
		r.add(check, badness(d.Err), d.Err, remedyText(d.Err))
	case d.Recovery != nil && *d.Recovery != "":
		r.add(check, Problem, "the driver asks to "+*d.Recovery, "drain the node (nomad node drain), stop Nomad, and do so")
	case d.RemapFailed:
		r.add(check, Problem, "no spare memory rows are left", "replace the GPU")
	case d.MIG && len(d.Instances) == 0:
		r.add(check, Problem, d.Name+": MIG mode without instances, so it offers no seats",
			"create instances (nvidia-smi mig -cgi … -C), or leave MIG mode (nvidia-smi -mig 0)")
	case !d.Events:
		r.add(check, Warning, d.Name+": the driver reports no XIDs for it, so its health depends on its counters only", "")
	case d.Seconds > slowSeconds:
		r.add(check, Warning, fmt.Sprintf("%s: NVML is slow for it, a reading took %.1f s", d.Name, d.Seconds), slowRemedy)
	case d.RemapPending:
		r.add(check, Note, d.Name+": a bad memory row is replaced at the next reset; the GPU can be used until then", "reset the GPU at a convenient time")
	case d.MIG:
		r.add(check, OK, fmt.Sprintf("%s in %d MIG instances", d.Name, len(d.Instances)), "")
	default:
		r.add(check, OK, d.Name+" at "+d.PCIBusID, "")
	}
	if d.SRAMExceeded != nil && *d.SRAMExceeded { // beside anything else
		r.add(check, Warning, d.Name+": its SRAM has had more uncorrectable errors than NVIDIA's field diagnostic passes", "run NVIDIA's field diagnostic at a convenient time, and have the GPU replaced if it fails")
	}
	for _, in := range d.Instances {
		r.uuids = append(r.uuids, in.UUID)
	}
}
