package doctor_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/doctor"
	"remuda/device-plugin/nvml"
	"remuda/device-plugin/nvml/worker"
	"remuda/internal/testkit/fakenvml"
)

// TestMain makes the test's binary a plugin that the doctor can ask.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "-nvml-worker":
			gpu := ""
			if len(os.Args) > 5 { // behind -nvml-gpu
				gpu = os.Args[5]
			}
			os.Exit(worker.Main(os.Args[3], gpu))
		case "-version":
			fmt.Println("remuda 0.1.0-test (go)")
			os.Exit(0)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

// host is a node with two GPUs on which the checks above are OK.
type host struct {
	t       *testing.T
	root    string
	plugins string
	lib     *fakenvml.Library
	cfg     doctor.Config
	node    doctor.Node
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, root: t.TempDir(), plugins: t.TempDir(), lib: fakenvml.Build(t)}
	h.lib.Set("count=2")
	for _, bus := range []string{"0000:1b:00.0", "0000:2b:00.0"} {
		h.write("sys/bus/pci/devices/"+bus+"/vendor", "0x10de\n")
		h.write("sys/bus/pci/devices/"+bus+"/class", "0x030200\n")
	}
	h.write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n")
	h.write("sys/bus/pci/devices/0000:00:00.0/class", "0x060000\n")
	h.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: gcc version 12.2.0\n")
	for _, f := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} {
		h.write("dev/"+f, "")
	}
	h.write("usr/lib64/libnvidia-ml.so.570.86.15", "")
	require.NoError(t, os.Symlink("libnvidia-ml.so.570.86.15", filepath.Join(h.root, "usr/lib64/libnvidia-ml.so.1")))
	h.install("remuda-device", 0o755)
	h.node = doctor.Node{Version: "1.11.2", PluginDir: h.plugins, Plugins: []string{"raw_exec", "remuda-device"}, Client: true}
	for gpu := range 2 {
		for seat := range 2 {
			h.node.Seats = append(h.node.Seats, doctor.Seat{ID: fmt.Sprintf("%s#%d", fakenvml.UUID(gpu), seat)})
		}
	}
	h.cfg = doctor.Config{
		Root: h.root, Version: "0.1.0-test", PluginDirs: []string{h.plugins},
		Nomad:         func(context.Context) (doctor.Node, error) { return h.node, nil },
		PluginVersion: func(context.Context, string) (string, error) { return "remuda 0.1.0-test (go)", nil },
		// The linker of a test cannot be told where to look, and a loaded machine is no fault of the GPUs.
		Probe: func(_ context.Context, path string) (nvml.Report, error) {
			return nvml.Probe(t.Context(), []string{path, "-nvml-worker", "-nvml-library", h.lib.Path}, 20*time.Second)
		},
	}
	return h
}

func (h *host) write(path, text string) {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h.t, os.WriteFile(path, []byte(text), 0o644))
}

func (h *host) remove(path string) {
	h.t.Helper()
	require.NoError(h.t, os.RemoveAll(filepath.Join(h.root, path)))
}

// install puts a plugin that is the test's binary into the plugin directory.
func (h *host) install(name string, mode os.FileMode) {
	h.t.Helper()
	path := filepath.Join(h.plugins, name)
	require.NoError(h.t, os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexec %q \"$@\"\n", os.Args[0]), mode))
}

func (h *host) uninstall() {
	h.t.Helper()
	require.NoError(h.t, os.Remove(filepath.Join(h.plugins, "remuda-device")))
}

// line is "STATUS check: found -> do" of one finding.
func line(f doctor.Finding) string {
	return fmt.Sprintf("%s %s: %s -> %s", f.Status, f.Check, f.Found, f.Do)
}

// lines are those of all findings.
func lines(findings []doctor.Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, line(f))
	}
	return strings.Join(all, "\n")
}

// has says whether one finding has all parts.
func has(findings []doctor.Finding, parts ...string) bool {
	return slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line(f), part) })
	})
}

func TestDoctor(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(*host)
		// want are parts of one finding each; sound says that there is no problem.
		want  [][]string
		sound bool
	}{
		{name: "the checks above are OK", do: func(*host) {}, sound: true, want: [][]string{
			{"ok plugin file"}, {"ok PCI bus: 2 NVIDIA GPUs", "0000:1b:00.0"}, {"ok kernel driver: version 570.86.15"},
			{"ok device files: 2 GPUs"}, {"ok NVML library: /usr/lib64/libnvidia-ml.so.1, version 570.86.15"},
			{"ok NVML: driver 570.86.15, CUDA 12.8, 2 GPUs"}, {"ok GPU " + fakenvml.UUID(1), "H100"}, {"ok Nomad: version 1.11.2"},
			{"ok plugin block"}, {"ok seats: Nomad offers 4 seats of 2 GPUs, 4 of them healthy"}, {"note GMS sockets"}}},
		{name: "no GPU", do: func(h *host) {
			h.remove("sys/bus/pci/devices/0000:1b:00.0")
			h.remove("sys/bus/pci/devices/0000:2b:00.0")
		},
			want: [][]string{{"problem PCI bus: no NVIDIA GPU", "simulate"}}},
		{name: "no /sys", do: func(h *host) { h.remove("sys") }, sound: true, want: [][]string{{"warning PCI bus"}}},
		{name: "no driver", do: func(h *host) { h.remove("proc"); h.lib.Set("init=9") }, want: [][]string{
			{"problem kernel driver: NVIDIA's driver is not loaded", "modprobe nvidia"}, {"problem NVML", "the NVIDIA driver is not loaded", "modprobe nvidia"}}},
		{name: "nouveau", do: func(h *host) { h.remove("proc"); h.write("sys/module/nouveau/x", "") }, want: [][]string{{"problem kernel driver: nouveau", "blacklist"}}},
		{name: "no device files", do: func(h *host) { h.remove("dev") }, want: [][]string{{"problem device files", "/dev/nvidia0", "nvidia-modprobe"}}},
		{name: "no nvidiactl", do: func(h *host) { h.remove("dev/nvidiactl") }, want: [][]string{{"problem device files", "/dev/nvidiactl"}}},
		{name: "no uvm", do: func(h *host) { h.remove("dev/nvidia-uvm") }, sound: true, want: [][]string{{"warning device files", "CUDA programs fail"}}},
		{name: "half an upgrade", do: func(h *host) {
			h.remove("usr/lib64/libnvidia-ml.so.1")
			h.write("usr/lib64/libnvidia-ml.so.580.65.06", "")
			require.NoError(h.t, os.Symlink("libnvidia-ml.so.580.65.06", filepath.Join(h.root, "usr/lib64/libnvidia-ml.so.1")))
			h.lib.Set("init=18")
		}, want: [][]string{{"problem NVML library", "580.65.06", "570.86.15", "reboot"}, {"problem NVML", "different versions", "reboot"}}},
		{name: "a dangling link", do: func(h *host) { h.cfg.Library = "/usr/lib64/libnvidia-ml.so.9" }, want: [][]string{{"problem NVML library", "no such file", "nvml_library"}}},
		{name: "a link that leads nowhere", do: func(h *host) { h.remove("usr/lib64/libnvidia-ml.so.570.86.15") }, want: [][]string{{"problem NVML library", "the link is broken"}}},
		{name: "no library", do: func(h *host) { h.remove("usr"); h.lib.Hide() }, want: [][]string{
			{"note NVML library"}, {"problem NVML", "No such file", "install the driver's libraries"}}},
		{name: "a stub", do: func(h *host) { h.lib = fakenvml.Build(h.t, "nvmlDeviceGetUUID") }, want: [][]string{{"problem NVML", "lacks nvmlDeviceGetUUID", "stub"}}},
		{name: "an old library", do: func(h *host) { h.lib = fakenvml.Build(h.t, "nvmlEventSetWait_v2") }, want: [][]string{
			{"note NVML functions", "nvmlEventSetWait_v2"}, {"warning GPU", "reports no XIDs"}}, sound: true},
		{name: "a library that ends its process", do: func(h *host) { h.lib.Set("exit=nvmlDeviceGetCount_v2") }, want: [][]string{{"problem NVML", "told to exit"}}},
		{name: "no permission", do: func(h *host) { h.lib.Set("init=4") }, want: [][]string{{"problem NVML", "no permission", "/dev/nvidiactl"}}},
		{name: "a GPU that crashes", do: func(h *host) { h.lib.Set("gpu1.crash=nvmlDeviceGetMemoryInfo") }, want: [][]string{
			{"ok GPU " + fakenvml.UUID(0)}, {"problem GPU " + fakenvml.UUID(1) + ": NVML crashes in nvmlDeviceGetMemoryInfo: SIGSEGV: segmentation violation ->", "library crashes"}}},
		{name: "a GPU that crashes when it is named", do: func(h *host) { h.lib.Set("gpu1.abort=nvmlDeviceGetUUID") }, want: [][]string{
			{"ok GPU " + fakenvml.UUID(0)}, {"problem GPU: GPU 1: NVML crashes in nvmlDeviceGetUUID of GPU 1: SIGABRT"}}},
		{name: "a slow GPU", do: func(h *host) { h.lib.Set("gpu1.slow=100") }, sound: true, want: [][]string{
			{"ok GPU " + fakenvml.UUID(0)}, {"warning GPU " + fakenvml.UUID(1), "NVML is slow", "nvidia-persistenced"}}},
		{name: "a fault of the node", do: func(h *host) {
			h.lib.Set("init=9")
			for i := range h.node.Seats {
				h.node.Seats[i].Reason = "the GPU cannot be read: nvmlInit: the NVIDIA driver is not loaded"
			}
		}, want: [][]string{{"problem NVML: nvmlInit: the NVIDIA driver is not loaded", "modprobe"},
			{"problem seats of " + fakenvml.UUID(0) + ", " + fakenvml.UUID(1) + ": unhealthy, because NVML cannot be used: see above"}}},
		{name: "a GPU that needs a reset that the driver does not report", do: func(h *host) {
			h.node.Config = map[string]any{"health_dir": "/srv/health"}
			h.node.Seats[2].Reason = "XID 79: it needs a reset"
		}, want: [][]string{{"problem seats of " + fakenvml.UUID(1), "rm /srv/health/" + fakenvml.UUID(1) + ".json"}}},
		{name: "a lost GPU", do: func(h *host) { h.lib.Set("gpu1.lost=1") }, want: [][]string{{"problem GPU: GPU 1: ", "lost", "dmesg"}}},
		{name: "a GPU that needs a reset", do: func(h *host) { h.lib.Set("gpu1.recovery=1") }, want: [][]string{{"problem GPU " + fakenvml.UUID(1), "reset the GPU", "drain"}}},
		{name: "no spare rows", do: func(h *host) { h.lib.Set("gpu1.remapfailed=1") }, want: [][]string{{"problem GPU", "spare memory rows", "replace the GPU"}}},
		{name: "an SRAM that is worn out", do: func(h *host) { h.lib.Set("gpu1.sram=1") }, sound: true, want: [][]string{{"warning GPU " + fakenvml.UUID(1), "SRAM", "field diagnostic"}}},
		{name: "a worn SRAM and a slow GPU", do: func(h *host) { h.lib.Set("gpu1.sram=1", "gpu1.slow=100") }, sound: true, want: [][]string{
			{"warning GPU " + fakenvml.UUID(1), "SRAM"}, {"warning GPU " + fakenvml.UUID(1), "NVML is slow"}}},
		{name: "a worn SRAM and a pending row", do: func(h *host) { h.lib.Set("gpu1.sram=1", "gpu1.remap=1") }, sound: true, want: [][]string{
			{"warning GPU " + fakenvml.UUID(1), "SRAM"}, {"note GPU " + fakenvml.UUID(1), "next reset"}}},
		{name: "a pending row", do: func(h *host) { h.lib.Set("gpu1.remap=1") }, sound: true, want: [][]string{{"note GPU", "next reset"}}},
		{name: "MIG without instances", do: func(h *host) { h.lib.Set("gpu1.mig=0") }, want: [][]string{{"problem GPU", "MIG mode", "nvidia-smi mig"}}},
		{name: "MIG", do: func(h *host) { h.lib.Set("gpu1.mig=2") }, sound: true, want: [][]string{{"ok GPU", "2 MIG instances"},
			{"ok seats: Nomad offers 4 seats"}}},
		{name: "no plugin", do: func(h *host) { h.uninstall() }, want: [][]string{
			{"problem plugin file", "no remuda-device in", "install -m 0755"}, {"note NVML: not checked"}}},
		{name: "no plugin directory", do: func(h *host) { h.node.PluginDir = ""; h.cfg.PluginDirs = nil }, want: [][]string{{"problem plugin file", "plugin_dir"}}},
		{name: "another name", do: func(h *host) { h.uninstall(); h.install("remuda-device-v2", 0o755) }, want: [][]string{
			{"problem plugin name", `"remuda-device-v2"`, "rename it"}}},
		{name: "two plugins", do: func(h *host) { h.install("nomad-device-nvidia", 0o755) }, sound: true, want: [][]string{{"warning plugin name", "offered twice"}}},
		{name: "not executable", do: func(h *host) { require.NoError(h.t, os.Chmod(filepath.Join(h.plugins, "remuda-device"), 0o644)) }, want: [][]string{{"problem plugin file", "chmod 0755"}}},
		{name: "a directory", do: func(h *host) {
			h.uninstall()
			require.NoError(h.t, os.Mkdir(filepath.Join(h.plugins, "remuda-device"), 0o755))
		}, want: [][]string{{"problem plugin file", "is not a regular file"}}},
		{name: "bound too early", do: func(h *host) {
			h.cfg.PluginVersion = func(context.Context, string) (string, error) {
				return "", errors.New("exit status 127: remuda-device: symbol lookup error: undefined symbol: nvmlInit_v2")
			}
		}, want: [][]string{{"problem plugin file", "symbol lookup error", "LD_BIND_NOW"}}},
		{name: "no program", do: func(h *host) {
			h.cfg.PluginVersion = nil
			require.NoError(h.t, os.WriteFile(filepath.Join(h.plugins, "remuda-device"), []byte("garbage"), 0o755))
		}, want: [][]string{{"problem plugin file", "does not run"}}},
		{name: "another version", do: func(h *host) { h.cfg.Version, h.cfg.PluginVersion = "0.2.0", nil }, sound: true, want: [][]string{{"warning plugin file", "0.1.0-test", "0.2.0"}}},
		{name: "no Nomad", do: func(h *host) {
			h.cfg.Nomad = func(context.Context) (doctor.Node, error) { return doctor.Node{}, errors.New("connection refused") }
		}, sound: true, want: [][]string{{"warning Nomad: connection refused", "NOMAD_ADDR"}, {"ok plugin file"}}},
		{name: "a server", do: func(h *host) { h.node.Client = false }, want: [][]string{{"problem Nomad: the agent is a server and not a client"}}},
		{name: "an old Nomad", do: func(h *host) { h.node.Version = "1.10.4" }, want: [][]string{{"problem Nomad: version 1.10.4", "1.11.1"}}},
		{name: "no plugin block", do: func(h *host) { h.node.Plugins = []string{"raw_exec"} }, sound: true, want: [][]string{{"note plugin block", "defaults"}}},
		{name: "a plugin block of another name", do: func(h *host) { h.node.Plugins = []string{"remuda"} }, want: [][]string{{"problem plugin block", `"remuda"`}}},
		{name: "no seats", do: func(h *host) { h.node.Seats = nil }, want: [][]string{{"problem seats: Nomad offers no seats", "restart the agent"}}},
		{name: "unhealthy seats", do: func(h *host) { h.node.Seats[2].Reason = "XID 79"; h.node.Seats[3].Reason = "XID 79" }, want: [][]string{
			{"ok seats: Nomad offers 4 seats of 2 GPUs, 2 of them healthy"}, {"problem seats of " + fakenvml.UUID(1), "XID 79"}}},
		{name: "all unhealthy", do: func(h *host) {
			for i := range h.node.Seats {
				h.node.Seats[i].Reason = "driver"
			}
		}, want: [][]string{{"problem seats: Nomad offers 4 seats of 2 GPUs, 0 of them"}}},
		{name: "seats of another plugin", do: func(h *host) { h.node.Others = []string{"nvidia/gpu/H100 GPU-1"} }, sound: true, want: [][]string{{"warning seats", "nvidia/gpu/H100 GPU-1"}}},
		{name: "simulated", do: func(h *host) {
			h.remove("proc")
			for i := range h.node.Seats {
				h.node.Seats[i].Simulated = true
			}
		}, sound: true, want: [][]string{{"note GPUs: this node's GPUs are simulated"}, {"ok seats"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			tc.do(h)
			findings := doctor.Run(t.Context(), h.cfg)
			for _, f := range findings {
				require.NotEmpty(t, f.Found, f.Check)
				if f.Status == doctor.Problem {
					// A seat's own reason may be all there is to say.
					require.True(t, f.Do != "" || strings.HasPrefix(f.Check, "plugin block") || strings.HasPrefix(f.Check, "seats"), "%s: what to do?", line(f))
				}
			}
			require.Equal(t, tc.sound, doctor.Sound(findings), "%s", lines(findings))
			for _, parts := range tc.want {
				require.True(t, has(findings, parts...), "want %q in\n%s", parts, lines(findings))
			}
		})
	}
}

// Within 5 s the doctor names the GPU that hangs, and the call. The probe is the one that operators run. A
// machine that is busy may be too slow for its limits, so each case has a few attempts.
func TestDoctorNamesAHangInTime(t *testing.T) {
	hangingGPU := [][]string{{"ok NVML"}, {"ok GPU " + fakenvml.UUID(0)}, {"problem GPU " + fakenvml.UUID(1) + ": NVML hangs in nvmlDeviceGetPowerUsage", "dmesg"}}
	for _, tc := range []struct {
		name string
		do   func(*host)
		want [][]string
	}{
		{"a hanging driver", func(h *host) { h.lib.Set("hang=nvmlDeviceGetCount_v2") },
			[][]string{{"problem NVML: NVML hangs in nvmlDeviceGetCount", "the driver waits for the GPU"}}},
		{"a GPU that hangs", func(h *host) { h.lib.Set("gpu1.hang=nvmlDeviceGetPowerUsage") }, hangingGPU},
		{"a GPU that hangs in every call", func(h *host) { h.lib.Set("gpu1.hang=*") }, [][]string{
			{"ok NVML"}, {"ok GPU " + fakenvml.UUID(0)}, {"problem GPU: GPU 1: NVML hangs in nvmlDeviceGetHandleByIndex of GPU 1", "dmesg"}}},
		{"a GPU that hangs beside one that crashes", func(h *host) {
			h.lib.Set("count=4", "gpu1.hang=*", "gpu2.abort=nvmlDeviceGetUUID", "gpu3.hang=nvmlDeviceGetMemoryInfo")
		}, [][]string{{"ok GPU " + fakenvml.UUID(0)}, {"problem GPU: GPU 1: NVML hangs in nvmlDeviceGetHandleByIndex of GPU 1"},
			{"problem GPU: GPU 2: NVML crashes in nvmlDeviceGetUUID of GPU 2"}, {"problem GPU " + fakenvml.UUID(3) + ": NVML hangs in nvmlDeviceGetMemoryInfo"}}},
		{"a driver that crawls", func(h *host) { h.lib.Set("gpu1.slow=700") }, [][]string{
			{"ok GPU " + fakenvml.UUID(0)}, {"warning GPU", "NVML", " of GPU 1", "nvidia-persistenced"}}},
		{"an agent and a plugin that hang as well", func(h *host) {
			h.lib.Set("gpu1.hang=nvmlDeviceGetPowerUsage")
			h.cfg.Nomad = func(ctx context.Context) (doctor.Node, error) { <-ctx.Done(); return doctor.Node{}, ctx.Err() }
			h.cfg.PluginVersion = nil
			require.NoError(h.t, os.WriteFile(filepath.Join(h.plugins, "remuda-device"),
				fmt.Appendf(nil, "#!/bin/sh\n[ \"$1\" = -version ] && sleep 60\nexec %q \"$@\"\n", os.Args[0]), 0o755))
		}, append([][]string{{"warning plugin file", "no answer"}}, hangingGPU...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.cfg.Probe, h.cfg.Library = nil, h.lib.Path
			h.write(h.lib.Path, "")
			tc.do(h)
			for attempt := 1; ; attempt++ {
				begin := time.Now()
				findings := doctor.Run(t.Context(), h.cfg)
				took := time.Since(begin)
				good := took < 5*time.Second
				for _, parts := range tc.want {
					good = good && has(findings, parts...)
				}
				if good {
					return
				}
				require.Less(t, attempt, 4, "after %s, want %q in\n%s", took, tc.want, lines(findings))
			}
		})
	}
}

// TestDeadlineOfTheDoctor: at its deadline the doctor names a call that took most of the time. Without one it says
// only that it has not finished. A busy machine has a few attempts.
func TestDeadlineOfTheDoctor(t *testing.T) {
	for _, tc := range []struct {
		name, state string
		want        []string
		sound       bool
	}{
		{"a node's call", "hang=nvmlDeviceGetCount_v2", []string{"problem NVML: nvmlDeviceGetCount has not returned for ", " s -> check dmesg"}, false},
		{"a GPU's call", "gpu1.hang=nvmlDeviceGetPowerUsage",
			[]string{"problem GPU " + fakenvml.UUID(1) + ": nvmlDeviceGetPowerUsage has not returned for ", " s -> check dmesg"}, false},
		{"many calls", "gpu1.slow=250", []string{"warning GPU ", "NVML has not finished in ", "run doctor again"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.lib.Set("count=2", tc.state)
			h.cfg.Probe = func(ctx context.Context, path string) (nvml.Report, error) {
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				return nvml.Probe(ctx, []string{path, "-nvml-worker", "-nvml-library", h.lib.Path}, time.Minute)
			}
			for attempt := 1; ; attempt++ {
				findings := doctor.Run(t.Context(), h.cfg)
				if has(findings, tc.want...) && doctor.Sound(findings) == tc.sound {
					return
				}
				require.Less(t, attempt, 4, "want %q in\n%s", tc.want, lines(findings))
			}
		})
	}
}

// TestVersionTakesNoTimeOfNVML: the plugin's version and NVML are asked at once. NVML's answer does not count if the
// plugin does not run.
func TestVersionTakesNoTimeOfNVML(t *testing.T) {
	for name, versionErr := range map[string]error{"runs": nil, "does not run": errors.New("exit status 1")} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			probing := make(chan struct{})
			h.cfg.Probe = func(ctx context.Context, _ string) (nvml.Report, error) {
				close(probing)
				if versionErr != nil {
					<-ctx.Done()
				}
				return nvml.Report{}, ctx.Err()
			}
			h.cfg.PluginVersion = func(ctx context.Context, _ string) (string, error) {
				select {
				case <-probing:
				case <-ctx.Done():
					return "", errors.New("NVML is not asked")
				}
				return "remuda 0.1.0-test (go)", versionErr
			}
			findings := doctor.Run(t.Context(), h.cfg)
			require.Equal(t, versionErr == nil, has(findings, "ok NVML: "), lines(findings))
			require.Equal(t, versionErr != nil, has(findings, "note NVML: not checked"), lines(findings))
			require.Equal(t, versionErr == nil, has(findings, "ok plugin file"), lines(findings))
		})
	}
}

// TestAServerIsNoNode: where the agent has no node, the checks of this machine's GPUs say nothing.
func TestAServerIsNoNode(t *testing.T) {
	h := newHost(t)
	h.node.Client = false
	require.Len(t, doctor.Run(t.Context(), h.cfg), 1)
}

func TestGMSSockets(t *testing.T) {
	h := newHost(t)
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	h.cfg.GMSSocketDir = filepath.Join(dir, "none")
	require.Contains(t, line(last(doctor.Run(t.Context(), h.cfg))), "note GMS sockets: none")
	h.cfg.GMSSocketDir = dir
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "gms_"+fakenvml.UUID(0)+"_weights.sock"), Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	findings := doctor.Run(t.Context(), h.cfg)
	require.False(t, doctor.Sound(findings))
	require.Contains(t, line(last(findings)), "problem GMS sockets: "+dir)
	require.Contains(t, line(last(findings)), "remuda gms")
}

func last(f []doctor.Finding) doctor.Finding { return f[len(f)-1] }

func TestPrint(t *testing.T) {
	var b strings.Builder
	require.NoError(t, doctor.Print(&b, []doctor.Finding{
		{Check: "driver", Status: doctor.OK, Found: "fine"}, {Check: "seats", Status: doctor.Problem, Found: "none", Do: "restart"}}))
	require.Equal(t, "OK       driver: fine\nPROBLEM  seats: none\n         -> restart\n\n1 of 2 checks found a problem.\n", b.String())
}

// The plugin's own configuration says which library and which sockets count.
func TestDoctorGoesByThePluginsConfiguration(t *testing.T) {
	h := newHost(t)
	h.cfg.Probe = nil
	h.node.Config = map[string]any{"nvml_library": h.lib.Path, "gms_socket_dir": "/somewhere/else"}
	h.cfg.Root = "/"
	all := lines(doctor.Run(t.Context(), h.cfg))
	require.Contains(t, all, "ok NVML library: "+h.lib.Path)
	require.Contains(t, all, "ok NVML: driver 570.86.15")
	require.Contains(t, all, "/somewhere/else")
	h.node.Config["gms_socket_dir"] = ""
	require.Contains(t, line(last(doctor.Run(t.Context(), h.cfg))), "no GPU memory service is configured")
}

// An agent that hangs is a finding, and leaves time for the rest.
func TestNomadThatHangs(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	cfg := nomadapi.DefaultConfig()
	cfg.Address = server.URL
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := doctor.AskNomad(cfg)(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	h := newHost(t)
	h.cfg.Nomad = func(ctx context.Context) (doctor.Node, error) {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.Less(t, time.Until(deadline), 30*time.Second)
		return doctor.Node{}, context.DeadlineExceeded
	}
	require.True(t, doctor.Sound(doctor.Run(t.Context(), h.cfg)))
}

// What a real agent answers, cut down to what matters.
func TestAskNomad(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent/self", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"config":{"PluginDir":"/opt/p","Version":{"Version":"1.11.2"},"Plugins":[{"Name":"raw_exec"},{"Name":"remuda-device","Config":{"nvml_library":"/x"}}]},
			"stats":{"client":{"node_id":"n1"}}}`)
	})
	mux.HandleFunc("GET /v1/node/n1", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"ID":"n1","NodeResources":{"Devices":[
			{"Vendor":"nvidia","Type":"gpu","Name":"H100","Attributes":{"simulated":{"Bool":true}},
			 "Instances":[{"ID":"GPU-1#0","Healthy":true},{"ID":"GPU-1#1","Healthy":false,"HealthDescription":"XID 79"}]},
			{"Vendor":"nvidia","Type":"gpu","Name":"old","Instances":[{"ID":"GPU-2","Healthy":true}]},
			{"Vendor":"x","Type":"fpga","Name":"y","Instances":[{"ID":"1","Healthy":true}]}]}}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	cfg := nomadapi.DefaultConfig()
	cfg.Address = server.URL
	node, err := doctor.AskNomad(cfg)(t.Context())
	require.NoError(t, err)
	require.Equal(t, doctor.Node{Version: "1.11.2", PluginDir: "/opt/p", Plugins: []string{"raw_exec", "remuda-device"}, Client: true,
		Config: map[string]any{"nvml_library": "/x"},
		Seats:  []doctor.Seat{{ID: "GPU-1#0", Simulated: true}, {ID: "GPU-1#1", Reason: "XID 79", Simulated: true}},
		Others: []string{"nvidia/gpu/old GPU-2"}}, node)
	server.Close()
	_, err = doctor.AskNomad(cfg)(t.Context())
	require.ErrorContains(t, err, "query Nomad at")
}
