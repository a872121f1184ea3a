//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
	"remuda/internal/devcluster"
	"remuda/jobs"
)

// nomadPack runs a command of nomad-pack on a pack in jobs/packs.
func (f *fleet) nomadPack(verb, pack string, vars ...string) (string, error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	args := []string{verb, filepath.FromSlash("../jobs/packs/" + pack)}
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
	out, err := f.nomadPack("render", pack, vars...)
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

// TestPacks runs the packs with nomad-pack: a gateway and a nomad-autoscaler of the pack remuda serve
// and scale a model of the pack remuda-model.
func TestPacks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(*devcluster.Options) {})
	plugins := filepath.Join(f.dir, "plugins")
	require.NoError(t, os.MkdirAll(plugins, 0o700))
	plainCopy(t, binary(t, "remuda-autoscaler"), filepath.Join(plugins, "remuda-autoscaler"))
	policy := strings.NewReplacer(`"demo"`, `"packed"`, "replicas/demo", "replicas/packed", `evaluation_interval = "10s"`, `evaluation_interval = "1s"`)
	text, err := jobs.Files.ReadFile(jobs.Policy("capacity"))
	require.NoError(t, err)
	gateway := fmt.Sprintf("http://127.0.0.1:%d", f.info.SparePorts[0])
	vars := []string{
		`jobs=["gateway", "autoscaler"]`, "remuda=" + binary(t, "remuda"), "consul=" + f.info.Consul, "nomad=" + f.info.Nomad,
		fmt.Sprintf("controllers=[%q]", f.info.Controller), fmt.Sprintf("gateway_port=%d", f.info.SparePorts[0]), fmt.Sprintf("gateway_operator_port=%d", f.info.SparePorts[1]),
		"autoscaler_agent=" + toolPath(t, "nomad-autoscaler"), "autoscaler_plugin_dir=" + plugins, "autoscaler_data_dir=" + f.dir, `autoscaler_strategies=["remuda-capacity"]`, "autoscaler_policies=" + policy.Replace(string(text)),
	}

	all := f.rendered("remuda", `servers=["10.0.0.1", "10.0.0.2", "10.0.0.3"]`, "controller_tls=/etc/remuda", "gateway_tls_cert=/etc/${cert}")
	require.Len(t, all, 4)
	require.Equal(t, 3, *all["controller"].TaskGroups[0].Count)
	require.Contains(t, *all["gateway"].TaskGroups[0].Tasks[0].Templates[0].EmbeddedTmpl, `"/etc/${cert}"`)

	out, err := f.nomadPack("run", "remuda", vars...)
	require.NoError(t, err, out)
	require.Contains(t, out, "Running: gateway, autoscaler.")
	require.Contains(t, out, "export REMUDA_ADDR="+f.info.Controller)
	out, err = f.nomadPack("run", "remuda-model", "model=packed", "engine=sim", "weights=32MiB", "failover=true", "slots=4", "max=3", "min=1", "replicas=1",
		"controller="+f.info.Controller, "remuda="+binary(t, "remuda"), fmt.Sprintf(`vars={weights = "32MiB", remuda = %q, consul = %q}`, binary(t, "remuda"), f.info.Consul))
	require.NoError(t, err, out)
	require.Contains(t, out, "remuda model status packed")
	eventually(t, 2*time.Minute, "an answer of the pack's gateway", func() error {
		got, err := streamChat(t.Context(), gateway, "packed", "hello", 20)
		if err == nil && got.text != exact("packed", "hello", 20).Text {
			err = fmt.Errorf("got %q", got.text)
		}
		return err
	})
	eventually(t, time.Minute, "the pack's autoscaler", func() error {
		_, err := os.Stat(filepath.Join(f.dir, "remuda-capacity.json"))
		return err
	})
	found := f.remuda("doctor", "-consul", f.info.Consul)
	t.Log(found)
	for _, want := range []string{`(?m)^OK +Nomad rights: `, `(?m)^NOTE +Consul rights: ACLs are off`, `(?m)^OK +GPU nodes: 4 seats on 1 node$`, `(?m)^OK +lockd and gms: `, `(?m)^OK +models: 2 models, 1 replica serve$`, `(?m)^No problem found`, `(?m)^Next: `} {
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

	out, err = f.nomadPack("stop", "remuda", vars...)
	require.NoError(t, err, out)
	eventually(t, time.Minute, "the pack's gateway to end", func() error {
		resp, err := http.Get(gateway + "/ready")
		if err == nil {
			resp.Body.Close()
			return fmt.Errorf("it answers %s", resp.Status)
		}
		return nil
	})
}
