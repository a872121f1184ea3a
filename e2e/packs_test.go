//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/internal/devcluster"
	"remuda/jobs"
)

// nomadPack runs a command of nomad-pack on a pack in jobs/packs; an empty name of the deployment is the pack's.
func (f *fleet) nomadPack(verb, pack, name string, vars ...string) (string, error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	args := []string{verb, filepath.FromSlash("../jobs/packs/" + pack), "--name=" + name}
	for _, v := range vars {
		args = append(args, "--var", v)
	}
	cmd := exec.CommandContext(ctx, toolPath(f.t, "nomad-pack"), args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+f.info.Nomad, "NO_COLOR=1", "HOME="+f.dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// rendered are the jobs that a pack renders, by the names of their templates, as Nomad parses and
// validates them.
func (f *fleet) rendered(pack string, vars ...string) map[string]*nomadapi.Job {
	f.t.Helper()
	out, err := f.nomadPack("render", pack, "", vars...)
	require.NoError(f.t, err, out)
	all := map[string]*nomadapi.Job{}
	headings := regexp.MustCompile(`(?m)^\w+/(\w+)\.nomad:$`)
	texts := headings.Split(out, -1)[1:]
	for i, m := range headings.FindAllStringSubmatch(out, -1) {
		require.NoError(f.t, f.refusal(texts[i], ""), "%s\n%s", m[1], texts[i])
		job, err := f.parsed(texts[i], "")
		require.NoError(f.t, err)
		all[m[1]] = job
	}
	return all
}

// makesRoom ends the cluster's own controller, gateway and node job, so that the pack's jobs can take their ports
// and sockets. It returns the variables that give the pack's node job the arguments of the cluster's own.
func (f *fleet) makesRoom() []string {
	f.t.Helper()
	const name = "remuda-node"
	job, _, err := f.nomad.Jobs().Info(name, nil)
	require.NoError(f.t, err)
	args := job.TaskGroups[1].Tasks[0].Config["args"].([]any) // gms -socket-dir DIR -metrics ADDRESS and the flags for its memory
	require.Equal(f.t, "-socket-dir", args[1])
	require.Equal(f.t, "-metrics", args[3])
	memory, err := json.Marshal(args[5:])
	require.NoError(f.t, err)

	f.servers[0].end(syscall.SIGTERM)
	require.NoError(f.t, f.cluster.End("gateway", syscall.SIGTERM))
	// Purged, because nomad-pack takes no job for its own that it has not made; once it has ended, because
	// Nomad's client can miss the deletion and leave the tasks running (nomad#28242).
	for _, purge := range []bool{false, true} {
		_, _, err = f.nomad.Jobs().Deregister(name, purge, nil)
		require.NoError(f.t, err)
		f.ended(name)
	}
	return []string{"node_memory=" + string(memory), fmt.Sprintf("node_socket_dir=%s", args[2]), "node_state_dir=" + filepath.Join(f.dir, "lockd")}
}

// ended waits until a job has no allocation that runs.
func (f *fleet) ended(job string) {
	f.t.Helper()
	eventually(f.t, time.Minute, "the end of the job "+job, func() error {
		allocs, _, err := f.nomad.Jobs().Allocations(job, true, nil)
		for _, a := range allocs {
			if a.ClientStatus == nomadapi.AllocClientStatusRunning || a.ClientStatus == nomadapi.AllocClientStatusPending {
				err = errors.Join(err, fmt.Errorf("%s is %s", a.Name, a.ClientStatus))
			}
		}
		return err
	})
}

// packed applies a model with the pack remuda-model, as a deployment of its own: a run stops the jobs of
// its deployment that it does not render.
func (f *fleet) packed(model string, vars ...string) {
	f.t.Helper()
	out, err := f.nomadPack("run", "remuda-model", "model-"+model, append(vars, "model="+model, "controller="+f.info.Controller, "remuda="+binary(f.t, "remuda"))...)
	require.NoError(f.t, err, out)
	require.Contains(f.t, out, "remuda model status "+model)
}

// TestPacks installs remuda with nomad-pack on Nomad and Consul, in the order of the pack's README: all that
// serves is of the packs. One model runs on the simulator, two by the job files for vLLM and SGLang on stand-ins
// for these.
func TestPacks(t *testing.T) {
	t.Parallel()
	remuda, raft := binary(t, "remuda"), dataDir(t)
	f := newFleet(t, 1, func(o *devcluster.Options) {
		o.GPUs = 4
		set(o, "nomad-client", nomadForController(t, remuda, raft))
	})
	plugins := filepath.Join(f.dir, "plugins")
	require.NoError(t, os.MkdirAll(plugins, 0o700))
	plainCopy(t, binary(t, "remuda-autoscaler"), filepath.Join(plugins, "remuda-autoscaler"))
	policy := strings.NewReplacer(`"demo"`, `"packed"`, "replicas/demo", "replicas/packed", `evaluation_interval = "10s"`, `evaluation_interval = "1s"`)
	text, err := jobs.Files.ReadFile(jobs.Policy("capacity"))
	require.NoError(t, err)
	portOf := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	vars := append(f.makesRoom(), "remuda="+remuda, "consul="+f.info.Consul, "nomad="+f.info.Nomad, fmt.Sprintf("controllers=[%q]", f.info.Controller),
		"controller_http_port="+portOf(f.info.Controller), fmt.Sprintf("controller_raft_port=%d", f.info.SparePorts[0]),
		"gateway_port="+portOf(f.info.Gateway), "gateway_operator_port="+portOf(f.info.GatewayOperators[0]),
		"autoscaler_agent="+toolPath(t, "nomad-autoscaler"), "autoscaler_plugin_dir="+plugins, "autoscaler_data_dir="+f.dir, `autoscaler_strategies=["remuda-capacity"]`, "autoscaler_policies="+policy.Replace(string(text)))

	all := f.rendered("remuda", `servers=["10.0.0.1", "10.0.0.2", "10.0.0.3"]`, "controller_tls=/etc/remuda", "gateway_tls_cert=/etc/${cert}")
	require.Len(t, all, 4)
	require.Equal(t, 3, *all["controller"].TaskGroups[0].Count)
	require.Contains(t, *all["gateway"].TaskGroups[0].Tasks[0].Templates[0].EmbeddedTmpl, `"/etc/${cert}"`)

	f.command("nomad", "var", "put", "nomad/jobs/controller", "raft_secret=0123456789abcdef0123456789abcdef")
	t.Cleanup(func() { stopController(t, f.dev, f.controller) }) // it would bring its jobs back
	out, err := f.nomadPack("run", "remuda", "", append(vars, `jobs=["controller", "node"]`)...)
	require.NoError(t, err, out)
	eventually(t, time.Minute, "the pack's controller", func() error { return f.controller.Ready(t.Context()) })
	f.token = jsonOf[api.Token](t, f.remuda("acl", "bootstrap", "-json")).SecretID
	f.api, err = api.NewClient(api.Config{Addresses: f.info.Controllers, Token: f.token, Timeout: 20 * time.Second})
	require.NoError(t, err)
	t.Cleanup(f.api.Close)
	for job, role := range map[string]string{"gateway": "gateway", "autoscaler": "autoscaler", "model-packed": "operator", "model-vllm": "operator", "model-sglang": "operator"} {
		token := jsonOf[api.Token](t, f.remuda("acl", "token", "create", "-role", role, "-name", job, "-json"))
		f.command("nomad", "var", "put", "nomad/jobs/"+job, "token="+token.SecretID)
	}
	server := f.allocOf("controller").ID
	out, err = f.nomadPack("run", "remuda", "", vars...)
	require.NoError(t, err, out)
	require.Contains(t, out, "Running: controller, node, gateway, autoscaler.")
	require.Contains(t, out, "export REMUDA_ADDR="+f.info.Controller)

	f.packed("packed", "engine=sim", "weights=32MiB", "failover=true", "slots=4", "max=3", "min=1", "replicas=1",
		fmt.Sprintf(`vars={weights = "32MiB", remuda = %q, consul = %q}`, remuda, f.info.Consul))
	bin := writeStandIns(t, f.dir)
	for _, e := range []struct {
		engine, job, share string
		pair               bool
	}{{"vllm", "vllm-failover.nomad.hcl", "gpu_memory_utilization", true}, {"sglang", "sglang.nomad.hcl", "mem_fraction_static", false}} {
		source, err := jobs.Files.ReadFile(e.job)
		require.NoError(t, err)
		job := filepath.Join(f.dir, e.job)
		require.NoError(t, os.WriteFile(job, withoutContainers(t, e.job, source, bin), 0o600))
		f.packed(e.engine, "engine="+e.engine, "job="+job, "weights=64MiB", "memory=60GiB", fmt.Sprintf("failover=%t", e.pair),
			fmt.Sprintf(`vars={weights = "llama", cpu = "200", memory = "512", %s = "0.7", consul = %q}`, e.share, f.info.Consul))
	}
	models := []string{"packed", "vllm", "sglang"}
	for _, model := range models {
		f.hot(model, 1)
		f.asked(model, "hello")
	}
	require.Equal(t, server, f.allocOf("controller").ID, "the second run of the pack changes nothing of the first")
	eventually(t, time.Minute, "the pack's autoscaler", func() error {
		_, err := os.Stat(filepath.Join(f.dir, "remuda-capacity.json"))
		return err
	})
	found := f.remuda("doctor", "-consul", f.info.Consul)
	t.Log(found)
	for _, want := range []string{`(?m)^OK +Nomad rights: `, `(?m)^NOTE +Consul rights: ACLs are off`, `(?m)^OK +GPU nodes: 8 seats on 1 node$`, `(?m)^OK +lockd and gms: `, `(?m)^OK +gateway: 1 report to the controller$`, `(?m)^OK +token: its role is operator$`, `(?m)^OK +models: 3 models, 3 replicas serve$`, `(?m)^No problem found`, `(?m)^Next: `} {
		require.Regexp(t, want, found)
	}

	for _, engine := range []struct {
		name, vars string
		pair       bool
	}{
		{"vllm", `weights = "llama"`, false}, {"vllm", `weights = "llama", gms = "true"`, true}, {"sglang", `weights = "llama"`, false},
		{"ollama", `gguf = "/srv/llama.gguf"`, false}, {"ollama", `gguf = "/srv/llama.gguf"`, true},
	} {
		job := f.rendered("remuda-model", "model=llama", "engine="+engine.name, "weights=16GiB", "memory=72GiB", fmt.Sprintf("failover=%t", engine.pair), "idle_warm=15m", "idle_cold=4h",
			"gpu_model=NVIDIA H100", "vars={"+engine.vars+`, consul = "127.0.0.1:8500"}`)["model"]
		text := *job.TaskGroups[0].Tasks[0].Templates[0].EmbeddedTmpl
		_, models, err := modelfile.Read([]modelfile.File{{Name: "llama.model.hcl", Text: text}}, jobs.Files, nil)
		require.NoError(t, err, text)
		require.Equal(t, engine.pair, models[0].Failover)
		require.Equal(t, "NVIDIA H100", models[0].Variants[0].GPUModel)
		require.Equal(t, engine.name, models[0].Variants[0].Engine)
		require.Equal(t, 15*time.Minute, models[0].IdleWarm)
	}

	for _, model := range models {
		f.remuda("model", "delete", model)
		out, err = f.nomadPack("destroy", "remuda-model", "model-"+model, "model="+model, "weights=1GiB")
		require.NoError(t, err, out)
	}
	out, err = f.nomadPack("stop", "remuda", "", vars...)
	require.NoError(t, err, out)
	for _, job := range []string{"controller", "remuda-node", "gateway", "autoscaler"} {
		f.ended(job)
	}
	require.Error(t, f.controller.Live(t.Context()))
}
