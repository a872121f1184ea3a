//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/doctor"
	"remuda/internal/testkit/fakenvml"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/proclog"
)

// nomadNode is a Nomad agent, server and client in one, with the device plugin.
type nomadNode struct {
	t      *testing.T
	dir    string
	plugin string // the plugin's file
	api    *nomadapi.Client
	node   string
	log    *proclog.Buffer
}

// startNomad starts an agent whose device plugin has the given configuration.
func startNomad(t *testing.T, config string) *nomadNode {
	t.Helper()
	n := &nomadNode{t: t, dir: dataDir(t), log: &proclog.Buffer{}}
	host, _, err := net.SplitHostPort(loopback.Free(t)) // nobody else listens there
	require.NoError(t, err)
	n.plugin = filepath.Join(n.dir, "plugins", "remuda-device")
	require.NoError(t, os.MkdirAll(filepath.Dir(n.plugin), 0o755))
	raw, err := os.ReadFile(binary(t, "remuda-device"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(n.plugin, raw, 0o755))
	agent := filepath.Join(n.dir, "nomad.hcl")
	require.NoError(t, os.WriteFile(agent, fmt.Appendf(nil, `
name      = "gpu-node"
data_dir  = %[1]q
bind_addr = %[3]q
plugin_dir = %[2]q
disable_update_check = true
log_level = "DEBUG"
advertise {
  http = "%[3]s:4646"
  rpc  = "%[3]s:4647"
  serf = "%[3]s:4648"
}
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled           = true
  network_interface = "lo"
  servers           = ["%[3]s:4647"]
  alloc_mounts_dir  = %[4]q
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
consul {
  client_auto_join = false
  server_auto_join = false
  auto_advertise   = false
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "remuda-device" {
  config {
%[5]s
  }
}
`, filepath.Join(n.dir, "data"), filepath.Dir(n.plugin), host, filepath.Join(n.dir, "mounts"), config), 0o600))
	args := []string{"agent", "-config", agent}
	cmd := exec.Command(toolPath(t, "nomad"), args...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.WaitDelay = time.Second
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		// An agent that ends leaves its allocations' mounts for the next one.
		for _, line := range mountsOf(n.dir) {
			if err := syscall.Unmount(strings.Fields(line)[4], 0); err != nil {
				t.Errorf("unmount %s: %v", line, err)
			}
		}
		eventually(t, 30*time.Second, "the plugin and its worker to be gone", func() error {
			if left := processesOf(n.dir); len(left) > 0 {
				return fmt.Errorf("left: %q", left)
			}
			return nil
		})
		if t.Failed() {
			log := n.log.String()
			t.Logf("nomad printed:\n%s", log[max(0, len(log)-12000):])
		}
	})
	api := nomadapi.DefaultConfig()
	api.Address = "http://" + host + ":4646"
	n.api, err = nomadapi.NewClient(api)
	require.NoError(t, err)
	begin := time.Now()
	// A combined agent can lose a race with itself at its start and then takes
	// half a minute.
	eventually(t, 2*time.Minute, "the node to be ready", func() error {
		select {
		case <-done:
			t.Fatalf("nomad ended:\n%s", n.log)
		default:
		}
		nodes, _, err := n.api.Nodes().List(nil)
		if err != nil {
			return err
		}
		if len(nodes) != 1 || nodes[0].Status != nomadapi.NodeStatusReady {
			return fmt.Errorf("nodes: %+v", nodes)
		}
		n.node = nodes[0].ID
		return nil
	})
	t.Logf("the node was ready after %s", time.Since(begin).Round(time.Millisecond))
	return n
}

// seats is the health of every seat as the API tells it: "" for a healthy one,
// else the reason.
func (n *nomadNode) seats() (map[string]string, error) {
	node, _, err := n.api.Nodes().Info(n.node, nil)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, group := range node.NodeResources.Devices {
		for _, d := range group.Instances {
			out[d.ID] = d.HealthDescription
			if !d.Healthy && d.HealthDescription == "" {
				out[d.ID] = "unhealthy without a reason"
			}
		}
	}
	return out, nil
}

// await waits until the health of the seats is as wanted: a part of the reason
// for each, or "" for healthy.
func (n *nomadNode) await(what string, want map[string]string) {
	n.t.Helper()
	eventually(n.t, time.Minute, what, func() error {
		got, err := n.seats()
		if err != nil {
			return err
		}
		if len(got) != len(want) {
			return fmt.Errorf("seats: %q", got)
		}
		for id, reason := range want {
			found, ok := got[id]
			if !ok || (reason == "") != (found == "") || !strings.Contains(found, reason) {
				return fmt.Errorf("seats: %q", got)
			}
		}
		return nil
	})
}

// gpuJob is a batch job that prints its environment, on as many seats as meet the constraints.
func gpuJob(name, count string, constraints ...*nomadapi.Constraint) *nomadapi.Job {
	job := nomadapi.NewBatchJob(name, name, "global", 50)
	task := nomadapi.NewTask("print", "raw_exec")
	task.Config = map[string]any{"command": "/usr/bin/env"}
	task.Resources = &nomadapi.Resources{Devices: []*nomadapi.RequestedDevice{{
		Name:        "nvidia/gpu",
		Count:       func() *uint64 { var c uint64; _, _ = fmt.Sscan(count, &c); return &c }(),
		Constraints: constraints,
	}}}
	group := nomadapi.NewTaskGroup("group", 1)
	group.AddTask(task)
	zero := 0
	group.RestartPolicy = &nomadapi.RestartPolicy{Attempts: &zero, Mode: func() *string { s := "fail"; return &s }()}
	job.AddTaskGroup(group)
	return job
}

// environment runs a gpuJob and returns what it printed.
func (n *nomadNode) environment(job *nomadapi.Job) []string {
	n.t.Helper()
	_, _, err := n.api.Jobs().Register(job, nil)
	require.NoError(n.t, err)
	var alloc string
	eventually(n.t, time.Minute, "the job to be done", func() error {
		list, _, err := n.api.Jobs().Allocations(*job.ID, false, nil)
		if err != nil {
			return err
		}
		for _, a := range list {
			require.NotEqual(n.t, nomadapi.AllocClientStatusFailed, a.ClientStatus, "%+v", a.TaskStates["print"])
			if a.ClientStatus == nomadapi.AllocClientStatusComplete {
				alloc = a.ID
				return nil
			}
		}
		return fmt.Errorf("allocations: %d", len(list))
	})
	logs, err := os.ReadFile(filepath.Join(n.dir, "data", "alloc", alloc, "alloc", "logs", "print.stdout.0"))
	require.NoError(n.t, err)
	return strings.Split(string(logs), "\n")
}

// A job that names a bare GPU UUID gets that GPU's group by the attribute uuids, on a node with two
// groups. By ${device.ids}, whose IDs have a seat, it gets no place.
func TestGPUByBareUUID(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.name=NVIDIA L4")
	n := startNomad(t, fmt.Sprintf("seats = 2\nnvml_library = %q\ngms_socket_dir = \"\"\nhealth_dir = \"\"", lib.Path))
	for i := range 2 {
		uuid := fakenvml.UUID(i)
		vars := n.environment(gpuJob(fmt.Sprintf("uuid-%d", i), "1", nomadapi.NewConstraint("${device.attr.uuids}", "set_contains", uuid)))
		require.Contains(t, vars, "REMUDA_GPU_UUIDS="+uuid)
	}
	job := gpuJob("bare", "1", nomadapi.NewConstraint("${device.ids}", "set_contains", fakenvml.UUID(1)))
	_, _, err := n.api.Jobs().Register(job, nil)
	require.NoError(t, err)
	eventually(t, time.Minute, "the job to be without a place", func() error {
		list, _, err := n.api.Jobs().Evaluations("bare", nil)
		if err != nil {
			return err
		}
		for _, e := range list {
			if len(e.FailedTGAllocs) > 0 {
				return nil
			}
		}
		return fmt.Errorf("evaluations: %+v", list)
	})
}

// TestNVML runs the device plugin on a fake NVML, loaded by the real loader,
// under a real Nomad.
func TestNVML(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.bus=00000000:AF:00.0")
	gms := dataDir(t)
	n := startNomad(t, fmt.Sprintf(`
    seats              = 2
    nvml_library       = %q
    fingerprint_period = "500ms"
    gms_socket_dir     = %q
    health_dir         = %q
`, lib.Path, gms, filepath.Join(dataDir(t), "health")))
	gpu0, gpu1 := fakenvml.UUID(0), fakenvml.UUID(1)
	all := func(reason0, reason1 string) map[string]string {
		return map[string]string{gpu0 + "#0": reason0, gpu0 + "#1": reason0, gpu1 + "#0": reason1, gpu1 + "#1": reason1}
	}
	n.await("all seats", all("", ""))
	node, _, err := n.api.Nodes().Info(n.node, nil)
	require.NoError(t, err)
	require.Len(t, node.NodeResources.Devices, 1)
	group := node.NodeResources.Devices[0]
	require.Equal(t, "nvidia/gpu/NVIDIA H100 80GB HBM3", group.ID())
	require.EqualValues(t, 81559, *group.Attributes["memory"].IntVal)
	require.Equal(t, "MiB", group.Attributes["memory"].Unit)
	require.Equal(t, "570.86.15", *group.Attributes["driver_version"].StringVal)
	require.True(t, *group.Attributes["gms"].BoolVal)
	require.ElementsMatch(t, []string{gpu0, gpu1}, strings.Split(*group.Attributes["uuids"].StringVal, ","))
	require.EqualValues(t, 131072, *group.Attributes["bar1"].IntVal)
	require.EqualValues(t, 65536, *group.Attributes["pci_bandwidth"].IntVal)
	for _, d := range group.Instances {
		want := "0000:1b:00.0"
		if strings.HasPrefix(d.ID, gpu1) {
			want = "0000:af:00.0"
		}
		require.Equal(t, want, d.Locality.PciBusID)
	}

	t.Run("a job gets the right environment", func(t *testing.T) {
		vars := n.environment(gpuJob("env", "2",
			nomadapi.NewConstraint("${device.ids}", "set_contains_any", gpu1+"#0,"+gpu1+"#1"),
			nomadapi.NewConstraint("${device.attr.memory}", ">=", "79 GiB"),
			nomadapi.NewConstraint("${device.attr.architecture}", "=", "hopper"),
			nomadapi.NewConstraint("${device.attr.uuids}", "set_contains", gpu1)))
		for _, want := range []string{
			"NVIDIA_VISIBLE_DEVICES=" + gpu1, "CUDA_VISIBLE_DEVICES=" + gpu1, "REMUDA_GPU_UUIDS=" + gpu1,
			"REMUDA_SEATS=" + gpu1 + "#0," + gpu1 + "#1", "GMS_SOCKET_DIR=" + gms, "REMUDA_CDI_DEVICES=nvidia.com/gpu=" + gpu1,
		} {
			require.Contains(t, vars, want)
		}
	})
	t.Run("statistics reach Nomad", func(t *testing.T) {
		eventually(t, time.Minute, "statistics", func() error {
			stats, err := n.api.Nodes().Stats(n.node, nil)
			if err != nil {
				return err
			}
			for _, g := range stats.DeviceStats {
				if one := g.InstanceStats[gpu0+"#1"]; one != nil {
					require.EqualValues(t, 1024, *one.Summary.IntNumeratorVal)
					require.EqualValues(t, 120, *one.Stats.Attributes["Power usage"].IntNumeratorVal)
					return nil
				}
			}
			return fmt.Errorf("none in %+v", stats.DeviceStats)
		})
	})
	t.Run("XID 79 and recovery", func(t *testing.T) {
		lib.XID(1, 79)
		lib.Set("gpu1.lost=1")
		begin := time.Now()
		n.await("the seats of the second GPU to be unhealthy", all("", "XID 79: the GPU has fallen off the bus"))
		t.Logf("unhealthy in Nomad's API %s after the XID", time.Since(begin).Round(time.Millisecond))
		status, err := exec.Command(toolPath(t, "nomad"), "node", "status", "-address", n.api.Address(), "-verbose", n.node).CombinedOutput()
		require.NoError(t, err, "%s", status)
		t.Logf("%s", grep(string(status), gpu1))
		require.Contains(t, string(status), gpu1+"#0")

		// Nothing is placed there.
		_, _, err = n.api.Jobs().Register(gpuJob("sick", "1",
			nomadapi.NewConstraint("${device.ids}", "set_contains_any", gpu1+"#0,"+gpu1+"#1")), nil)
		require.NoError(t, err)
		eventually(t, time.Minute, "the job to be blocked", func() error {
			evals, _, err := n.api.Jobs().Evaluations("sick", nil)
			if err != nil {
				return err
			}
			for _, e := range evals {
				if e.Status == "blocked" {
					return nil
				}
			}
			return fmt.Errorf("%d evaluations", len(evals))
		})
		lib.Set("gpu1.lost=")
		n.await("the seats to be healthy again", all("", ""))
		eventually(t, 2*time.Minute, "the blocked job to run", func() error {
			list, _, err := n.api.Jobs().Allocations("sick", false, nil)
			if err != nil {
				return err
			}
			if len(list) == 1 && list[0].ClientStatus == nomadapi.AllocClientStatusComplete {
				return nil
			}
			return fmt.Errorf("%d allocations", len(list))
		})
	})
	t.Run("the doctor sees what is there", func(t *testing.T) {
		cmd := exec.Command(binary(t, "remuda"), "device", "doctor", "-json", "-nomad", n.api.Address())
		raw, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil { // this machine may have no NVIDIA driver
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
		}
		var findings []doctor.Finding
		require.NoError(t, json.Unmarshal(raw, &findings), "%s", raw)
		found := map[string]string{}
		for _, f := range findings {
			found[f.Check] = string(f.Status) + " " + f.Found
		}
		require.Contains(t, found["plugin file"], "ok "+n.plugin)
		require.Contains(t, found["plugin block"], "ok ")
		require.Contains(t, found["NVML"], "ok driver 570.86.15, CUDA 12.8, 2 GPUs")
		require.Contains(t, found["seats"], "ok Nomad offers 4 seats of 2 GPUs, 4 of them healthy")
		require.Contains(t, found["Nomad"], "ok version 1.")
		require.Contains(t, found["GMS sockets"], "note none in "+gms, "the plugin's own configuration counts")
	})
	t.Run("a program's XID changes nothing", func(t *testing.T) {
		lib.XID(0, 31)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			got, err := n.seats()
			require.NoError(t, err)
			require.Equal(t, all("", ""), got)
		}
	})
	t.Run("the driver goes and comes back", func(t *testing.T) {
		plugin := childOf(t, n.plugin)
		lib.Set("fail=9", "init=9") // unloaded under the running plugin
		n.await("all seats to be unhealthy", all("the NVIDIA driver is not loaded", "the NVIDIA driver is not loaded"))
		lib.Hide() // uninstalled
		n.await("the reason to change", all("No such file or directory", "No such file or directory"))
		lib.Set("fail=", "init=", "driver=580.65.06")
		lib.Show()
		n.await("all seats to be healthy", all("", ""))
		require.Equal(t, plugin, childOf(t, n.plugin), "the plugin was never restarted")
		eventually(t, time.Minute, "the new driver's version", func() error {
			node, _, err := n.api.Nodes().Info(n.node, nil)
			if err != nil {
				return err
			}
			if v := *node.NodeResources.Devices[0].Attributes["driver_version"].StringVal; v != "580.65.06" {
				return fmt.Errorf("version %s", v)
			}
			return nil
		})
	})
	t.Run("a GPU hangs after an XID", func(t *testing.T) {
		lib.Set("gpu1.hang=*")
		lib.XID(1, 119)
		n.await("the seats of that GPU to be unhealthy", all("", "XID 119"))
		n.await("the hang to be noticed", all("", "NVML hangs in nvmlDeviceGet"))
		_, _, err := n.api.Jobs().Register(gpuJob("beside", "1",
			nomadapi.NewConstraint("${device.ids}", "set_contains_any", gpu0+"#0,"+gpu0+"#1")), nil)
		require.NoError(t, err)
		eventually(t, time.Minute, "a job on the other GPU to run", func() error {
			list, _, err := n.api.Jobs().Allocations("beside", false, nil)
			if err != nil {
				return err
			}
			if len(list) == 1 && list[0].ClientStatus == nomadapi.AllocClientStatusComplete {
				return nil
			}
			return fmt.Errorf("%d allocations", len(list))
		})
		require.NoError(t, syscall.Kill(pidOf(t, childOf(t, n.plugin)), syscall.SIGKILL))
		n.await("the XID to outlive the plugin", all("", "XID 119"))
		lib.Set("gpu1.hang=")
		n.await("the hang to be over", all("", "XID 119"))
		lib.Set("gpu1.recovery=1")
		n.await("the driver to ask for a reset", all("", "XID 119"))
		time.Sleep(2 * time.Second) // a reading
		lib.Set("gpu1.recovery=0")
		n.await("the seats to be healthy again", all("", ""))
	})
}

// grep keeps the lines that hold part.
func grep(text, part string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func pidOf(t *testing.T, text string) int {
	t.Helper()
	pid, err := strconv.Atoi(text)
	require.NoError(t, err)
	return pid
}

// childOf is the process that runs the plugin itself, not its worker.
func childOf(t *testing.T, path string) string {
	t.Helper()
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, f := range cmdlines {
		raw, _ := os.ReadFile(f)
		if strings.TrimRight(string(raw), "\x00") == path {
			found = append(found, strings.Split(f, "/")[2])
		}
	}
	require.Len(t, found, 1)
	return found[0]
}
