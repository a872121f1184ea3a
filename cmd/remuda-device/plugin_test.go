package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/built"
	"remuda/internal/testkit/devicetest"
	"remuda/internal/testkit/fakenvml"
)

// gpu0 is the first GPU of every node without a seed; scripts rely on it.
const (
	gpu0 = "GPU-00000000-0000-4000-8000-000000000000"
	gpu1 = "GPU-00000000-0000-4000-8000-000000000001"
)

// launch starts the binary as Nomad does: over go-plugin's handshake, gRPC only.
func launch(t *testing.T, bin string) (*plugin.Client, device.DevicePlugin) {
	t.Helper()
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDevice: &device.PluginDevice{},
		},
		Cmd:              exec.Command(bin),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: socketDir(t)},
	})
	t.Cleanup(client.Kill)
	rpc, err := client.Client()
	require.NoError(t, err)
	raw, err := rpc.Dispense(base.PluginTypeDevice)
	require.NoError(t, err)
	return client, raw.(device.DevicePlugin)
}

// socketDir is where a plugin may leave its socket. Its name is short because
// a socket's path may have 107 bytes only.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rd")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func configure(t *testing.T, p device.DevicePlugin, body string) error {
	t.Helper()
	schema, err := p.ConfigSchema()
	require.NoError(t, err)
	if strings.Contains(body, "simulate {") {
		body += fmt.Sprintf("\nsim_dir = %q\n", filepath.Join(t.TempDir(), "gpus"))
	}
	return p.SetConfig(&base.Config{ApiVersion: device.ApiVersion010, PluginConfig: devicetest.Encode(t, schema, body)})
}

// next waits for the stream's next message.
func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v, open := <-ch:
		require.True(t, open, "the stream ended")
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came for 20s")
		panic("unreachable")
	}
}

// running says whether a process exists and is no zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// workersOf are the NVML workers of a plugin.
func workersOf(t *testing.T, plugin int) []int {
	t.Helper()
	var found []int
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, f := range stats {
		raw, _ := os.ReadFile(f)
		_, rest, _ := strings.Cut(string(raw), ") ")
		var state string
		var parent int
		if n, _ := fmt.Sscan(rest, &state, &parent); n == 2 && parent == plugin && state != "Z" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			require.NoError(t, err)
			found = append(found, pid)
		}
	}
	return found
}

func devices(resp *device.FingerprintResponse) map[string]string {
	out := map[string]string{}
	for _, g := range resp.Devices {
		for _, d := range g.Devices {
			out[g.Name+" "+d.ID] = d.HealthDesc
		}
	}
	return out
}

func TestPluginUnderGoPlugin(t *testing.T) {
	bin := built.Copy(t, "remuda-device")

	t.Run("a node with two GPUs", func(t *testing.T) {
		client, p := launch(t, bin)
		info, err := p.PluginInfo()
		require.NoError(t, err)
		require.Equal(t, "remuda-device", info.Name)
		require.Equal(t, base.PluginTypeDevice, info.Type)

		state := filepath.Join(t.TempDir(), "gpus.json")
		require.NoError(t, configure(t, p, fmt.Sprintf(`
			fingerprint_period = "100ms"
			state_file         = %q
			seats              = 2
			simulate {
				model = "H100"
				memory = "80GiB"
				count = 2
			}`, state)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		resp := next(t, stream)
		require.NoError(t, resp.Error)
		const group = "NVIDIA H100 80GB HBM3 "
		require.Equal(t, map[string]string{
			group + gpu0 + "#0": "", group + gpu0 + "#1": "", group + gpu1 + "#0": "", group + gpu1 + "#1": "",
		}, devices(resp))
		memory := resp.Devices[0].Attributes["memory"]
		require.EqualValues(t, 81920, *memory.Int)
		require.Equal(t, "MiB", memory.Unit)

		res, err := p.Reserve([]string{gpu0 + "#1"})
		require.NoError(t, err)
		require.DirExists(t, res.Envs["REMUDA_SIM_GPU_DIR"])
		delete(res.Envs, "REMUDA_SIM_GPU_DIR")
		require.Equal(t, map[string]string{
			"NVIDIA_VISIBLE_DEVICES": gpu0,
			"CUDA_VISIBLE_DEVICES":   gpu0,
			"REMUDA_GPU_UUIDS":       gpu0,
			"REMUDA_SEATS":           gpu0 + "#1",
			"GMS_SOCKET_DIR":         "/run/remuda",
		}, res.Envs)
		_, err = p.Reserve([]string{gpu0 + "#2"})
		require.ErrorContains(t, err, gpu0+"#2")
		_, err = p.Reserve(nil)
		require.ErrorContains(t, err, "no device IDs")

		stats, err := p.Stats(ctx, 100*time.Millisecond)
		require.NoError(t, err)
		for range 2 {
			s := next(t, stats)
			require.NoError(t, s.Error)
			require.Len(t, s.Groups, 1)
			require.Len(t, s.Groups[0].InstanceStats, 4)
			one := s.Groups[0].InstanceStats[gpu1+"#0"]
			require.EqualValues(t, 81920, *one.Summary.IntDenominatorVal)
			require.True(t, *one.Stats.Attributes["Simulated"].BoolVal)
		}

		require.NoError(t, os.WriteFile(state, []byte(fmt.Sprintf(
			`{"gpus": {%q: {"unhealthy": "XID 79"}, %q: {"absent": true}}}`, gpu0, gpu1)), 0o600))
		want := map[string]string{group + gpu0 + "#0": "XID 79", group + gpu0 + "#1": "XID 79"}
		require.Equal(t, want, devices(next(t, stream)))
		_, err = p.Reserve([]string{gpu0 + "#0"})
		require.ErrorContains(t, err, "XID 79")
		require.NoError(t, os.Remove(state))
		require.Len(t, devices(next(t, stream)), 4)

		cancel()
		for resp := range stream {
			require.ErrorIs(t, resp.Error, context.Canceled)
		}
		client.Kill()
		require.True(t, client.Exited())
	})

	t.Run("a node with NVML", func(t *testing.T) {
		lib := fakenvml.Build(t)
		client, p := launch(t, bin)
		require.NoError(t, configure(t, p, fmt.Sprintf("fingerprint_period = \"100ms\"\nseats = 2\nnvml_library = %q\nhealth_dir = %q", lib.Path, filepath.Join(t.TempDir(), "health"))))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		resp := next(t, stream)
		require.NoError(t, resp.Error)
		group, uuid := "NVIDIA H100 80GB HBM3 ", fakenvml.UUID(0)
		require.Equal(t, map[string]string{group + uuid + "#0": "", group + uuid + "#1": ""}, devices(resp))
		require.False(t, *resp.Devices[0].Attributes["simulated"].Bool)
		require.Equal(t, "0000:1b:00.0", resp.Devices[0].Devices[0].HwLocality.PciBusID)
		res, err := p.Reserve([]string{uuid + "#1"})
		require.NoError(t, err)
		require.Equal(t, uuid, res.Envs["CUDA_VISIBLE_DEVICES"])
		lib.XID(0, 79)
		lib.Set("gpu0.lost=1")
		until := func(part string) {
			t.Helper()
			for good := false; !good; {
				for _, reason := range devices(next(t, stream)) {
					good = strings.Contains(reason, part) && (part == "") == (reason == "")
				}
			}
		}
		until("XID 79")
		_, err = p.Reserve([]string{uuid + "#1"})
		require.ErrorContains(t, err, "XID 79")
		time.Sleep(time.Second) // until it was read and found lost
		lib.Set("gpu0.lost=")
		until("")
		// An upgrade that has replaced the file does not concern this plugin.
		require.NoError(t, os.Rename(bin, bin+".old"))
		require.NoError(t, os.WriteFile(bin, []byte("#!/bin/sh\nexit 7\n"), 0o755))
		for _, old := range workersOf(t, client.ReattachConfig().Pid) {
			require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
			_, err = p.Reserve([]string{uuid + "#1"})
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return len(workersOf(t, client.ReattachConfig().Pid)) == 2 }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, os.Rename(bin+".old", bin))
		// The workers go where the plugin goes, even while NVML hangs.
		lib.Set("hang=nvmlDeviceGetMemoryInfo")
		left := workersOf(t, client.ReattachConfig().Pid)
		require.Len(t, left, 2)
		require.NoError(t, syscall.Kill(client.ReattachConfig().Pid, syscall.SIGKILL))
		require.Eventually(t, func() bool { return !slices.ContainsFunc(left, running) }, 20*time.Second, 20*time.Millisecond)
	})

	t.Run("no GPUs is no error", func(t *testing.T) {
		_, p := launch(t, bin)
		require.NoError(t, configure(t, p, `nvml_library = "/nonexistent/libnvidia-ml.so.1"
			health_dir = ""`))
		stream, err := p.Fingerprint(t.Context())
		require.NoError(t, err)
		resp := next(t, stream)
		require.NoError(t, resp.Error)
		require.Empty(t, resp.Devices)
	})

	t.Run("a bad config names every field", func(t *testing.T) {
		_, p := launch(t, bin)
		err := configure(t, p, `
			seats = 0
			simulate {
				model  = "Voodoo2"
				count  = 1000
			}
			simulate {
				model = "H100"
				memory = "plenty"
			}`)
		for _, want := range []string{"seats is 0", "simulate[0].memory is missing", "simulate[0].count is 1000", `simulate[1].memory "plenty"`} {
			require.ErrorContains(t, err, want)
		}
	})

	t.Run("a probe by hand", func(t *testing.T) {
		lib := fakenvml.Build(t)
		out, err := exec.CommandContext(t.Context(), bin, "-probe", "-nvml-library", lib.Path).Output()
		require.NoError(t, err)
		var report nvml.Report
		require.NoError(t, json.Unmarshal(out, &report))
		require.Equal(t, fakenvml.UUID(0), report.Look.Devices[0].UUID)
		require.EqualValues(t, 41, *report.Load[fakenvml.UUID(0)].TemperatureCelsius)
		lib.Hide()
		out, err = exec.CommandContext(t.Context(), bin, "-probe", "-nvml-library", lib.Path).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "No such file")
	})

	t.Run("a worker by hand explains itself", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), bin, "-nvml-worker").CombinedOutput()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%s", out)
		require.Equal(t, 2, exit.ExitCode())
		require.Contains(t, string(out), "started by the plugin itself")
	})

	t.Run("by hand it explains itself", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), bin)
		cmd.Env = []string{}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit))
		require.Equal(t, 1, exit.ExitCode())
		require.Contains(t, string(out), "plugin_dir")
	})

	t.Run("it ends when Nomad is killed", func(t *testing.T) {
		// A shell stands in for Nomad: it starts the plugin and is then killed.
		shell := exec.Command("/bin/sh", "-c", `"$0" & echo "pid $!"; wait`, bin)
		shell.Env = append(os.Environ(), plugin.EnvUnixSocketDir+"="+socketDir(t), base.Handshake.MagicCookieKey+"="+base.Handshake.MagicCookieValue)
		out, err := shell.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, shell.Start())
		defer func() { _ = shell.Process.Kill(); _ = shell.Wait() }()
		var pid int
		var handshake string
		for lines := bufio.NewScanner(out); handshake == "" || pid == 0; {
			require.True(t, lines.Scan(), "the plugin ended early")
			if _, err := fmt.Sscanf(lines.Text(), "pid %d", &pid); err != nil {
				handshake = lines.Text()
			}
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
		require.True(t, running(pid))
		socket := strings.Split(handshake, "|")[3]
		require.FileExists(t, socket)
		require.NoError(t, shell.Process.Kill())
		require.Eventually(t, func() bool { return !running(pid) }, 20*time.Second, 20*time.Millisecond)
		require.NoFileExists(t, socket, "it cleans up behind itself")
	})

	t.Run("it dies with SIGKILL and a new one knows its GPUs at once", func(t *testing.T) {
		client, p := launch(t, bin)
		require.NoError(t, configure(t, p, `simulate { model = "L40S" }`))
		require.NoError(t, syscall.Kill(client.ReattachConfig().Pid, syscall.SIGKILL))
		_, p = launch(t, bin)
		require.NoError(t, configure(t, p, `simulate { model = "L40S" }`))
		_, err := p.Reserve([]string{gpu0 + "#0"})
		require.NoError(t, err)
	})
}
