//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/agent"
	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/modelfile"
	"remuda/controller/nomad"
	"remuda/jobs"
)

// parsed is a job file as Nomad parses it with these values of its variables.
func (d *dev) parsed(source string, vars string) (*nomadapi.Job, error) {
	return d.nomad.Jobs().ParseHCLOpts(&nomadapi.JobsParseRequest{JobHCL: source, Variables: vars, Canonicalize: true})
}

// refusal is what Nomad has against a job file, nil for nothing.
func (d *dev) refusal(source, vars string) error {
	job, err := d.parsed(source, vars)
	if err != nil {
		return err
	}
	answer, _, err := d.nomad.Jobs().Validate(job, nil)
	switch {
	case err != nil:
		return err
	case answer.Error != "" || len(answer.ValidationErrors) > 0:
		return fmt.Errorf("%s %q", answer.Error, answer.ValidationErrors)
	case !answer.DriverConfigValidated:
		return errors.New("nomad has not looked at the drivers' configs")
	}
	return nil
}

// jobFilesAreValid: a real Nomad takes every job file of jobs/, by itself and as
// the variants of the model files.
func jobFilesAreValid(t *testing.T, d *dev) {
	files, err := fs.Glob(jobs.Files, "*.nomad.hcl")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 7)
	for _, name := range files {
		source, err := fs.ReadFile(jobs.Files, name)
		require.NoError(t, err)
		require.NoError(t, d.refusal(string(source), ""), name)
		// Nomad does find faults.
		broken := regexp.MustCompile(`(?m)^(\s+)driver += .*$`).ReplaceAllString(string(source), "")
		require.NotEqual(t, string(source), broken)
		require.ErrorContains(t, d.refusal(broken, ""), "river", name)
	}
	for name, vars := range map[string]string{
		"controller.nomad.hcl":      "servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\ntls = \"/etc/remuda\"\n",
		"gateway.nomad.hcl":         "count = 2\ncontrollers = [\"https://10.0.0.1:4750\"]\nca_cert = \"/etc/remuda/ca.pem\"\n",
		"node.nomad.hcl":            "memory = [\"-backend\", \"host\"]\n",
		"sglang-failover.nomad.hcl": "extra_args = [\"--tool-call-parser\", \"qwen\"]\ngpus = \"GPU-1,GPU-2\"\nremuda_gpus = \"2\"\n",
		"sglang.nomad.hcl":          "extra_args = [\"--tool-call-parser\", \"qwen\"]\ncontext_length = \"8192\"\nremuda_gpus = \"2\"\n",
		"vllm-failover.nomad.hcl":   "gms = true\ngpus = \"GPU-1,GPU-2\"\nremuda_gpus = \"2\"\n",
		"vllm.nomad.hcl":            "extra_args = [\"--enable-prefix-caching\"]\nmax_model_len = \"8192\"\nremuda_gpus = \"2\"\n",
	} {
		source, err := fs.ReadFile(jobs.Files, name)
		require.NoError(t, err)
		require.NoError(t, d.refusal(string(source), vars), name)
	}

	cfg := nomad.DefaultConfig()
	cfg.Address = d.nomad.Address()
	c, err := nomad.New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	models, err := filepath.Glob(filepath.Join("..", "jobs", "*.model.hcl"))
	require.NoError(t, err)
	require.NotEmpty(t, models)
	for _, path := range models {
		_, loaded, err := modelfile.Load(jobs.Files, path)
		require.NoError(t, err)
		for _, m := range loaded {
			for _, v := range m.Variants {
				warnings, err := c.Check(t.Context(), m, v)
				require.NoError(t, err, "%s: variant %s", path, v.Name)
				require.Empty(t, warnings, "%s: variant %s", path, v.Name)
			}
		}
	}
}

// configsOfTheJobs: the daemons take the configs that the job files write for them.
func configsOfTheJobs(t *testing.T, d *dev) {
	config := func(name, vars string, values map[string]string) (*nomadapi.Task, []byte) {
		t.Helper()
		source, err := fs.ReadFile(jobs.Files, name)
		require.NoError(t, err)
		job, err := d.parsed(string(source), vars)
		require.NoError(t, err)
		task := job.TaskGroups[0].Tasks[0]
		require.Len(t, task.Templates, 1)
		text := *task.Templates[0].EmbeddedTmpl
		for template, value := range values { // as Nomad fills them in
			text = strings.ReplaceAll(text, template, value)
		}
		require.NotContains(t, text, "{{")
		return task, []byte(text)
	}

	certs := t.TempDir()
	for _, name := range []string{"ca.pem", "server.pem", "server-key.pem"} {
		require.NoError(t, os.WriteFile(filepath.Join(certs, name), nil, 0o600))
	}
	source, err := fs.ReadFile(jobs.Files, "controller.nomad.hcl")
	require.NoError(t, err)
	secret := regexp.MustCompile(`\{\{ if .*\}\}`).FindString(string(source))
	addresses := map[string]string{secret: `secret = "0123456789abcdef"`, `{{ env "NOMAD_ADDR_raft" }}`: "10.0.0.2:4751", `{{ env "NOMAD_ADDR_http" }}`: "10.0.0.2:4750"}
	_, text := config("controller.nomad.hcl", "", addresses)
	one, err := agent.Parse("agent.hcl", text, agent.DefaultConfig())
	require.NoError(t, err, "%s", text)
	require.Equal(t, 1, one.BootstrapExpect)
	require.Empty(t, one.Join)
	require.True(t, one.ACL.Enabled)
	require.Equal(t, "0123456789abcdef", one.Raft.Secret)

	// Without the secret it does not start, unless it has TLS.
	addresses[secret] = ""
	_, text = config("controller.nomad.hcl", "", addresses)
	_, err = agent.Parse("agent.hcl", text, agent.DefaultConfig())
	require.ErrorContains(t, err, "the Raft port has no authentication")
	task, text := config("controller.nomad.hcl", fmt.Sprintf("servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\ntls = %q\nnomad_ca = %q\nconsul_ca = \"/etc/remuda/consul-ca.pem\"\n", certs, filepath.Join(certs, "ca.pem")), addresses)
	three, err := agent.Parse("agent.hcl", text, agent.DefaultConfig())
	require.NoError(t, err, "%s", text)
	require.Equal(t, 3, three.BootstrapExpect)
	require.Equal(t, []string{"10.0.0.1:4751", "10.0.0.2:4751", "10.0.0.3:4751"}, three.Join)
	require.Equal(t, agent.HTTP{Bind: "0.0.0.0:4750", Advertise: "10.0.0.2:4750", Drain: three.HTTP.Drain}, three.HTTP)
	require.Contains(t, three.Join, three.Raft.Advertise)
	require.Equal(t, filepath.Join(certs, "server-key.pem"), three.TLS.KeyFile)
	require.True(t, three.TLS.HTTP && three.TLS.Raft)
	require.Equal(t, filepath.Join(certs, "ca.pem"), three.Nomad.CAFile)
	require.Equal(t, "/etc/remuda/consul-ca.pem", task.Env["CONSUL_CACERT"])
	require.Greater(t, *task.KillTimeout, three.HTTP.Drain)

	// Without a token in Nomad's variables, and with one.
	token := regexp.MustCompile(`\{\{.*\}\}`).FindString
	vars := "controllers = [\"https://10.0.0.1:4750\", \"https://10.0.0.2:4750\"]\nca_cert = \"/etc/remuda/ca.pem\"\nadvertise = \"https://llm.example.com\"\n"
	source, err = fs.ReadFile(jobs.Files, "gateway.nomad.hcl")
	require.NoError(t, err)
	for value, want := range map[string]string{"": "", `token = "secret"`: "secret"} {
		task, text := config("gateway.nomad.hcl", vars, map[string]string{token(string(source)): value})
		cfg, err := gateway.Parse("gateway.hcl", text, gateway.DefaultConfig())
		require.NoError(t, err, "%s", text)
		require.Equal(t, gateway.Controller{Addresses: []string{"https://10.0.0.1:4750", "https://10.0.0.2:4750"}, Token: want, CACert: "/etc/remuda/ca.pem"}, cfg.Controller)
		require.Equal(t, "https://llm.example.com", cfg.Advertise)
		require.Greater(t, *task.KillTimeout, cfg.Timeouts.LameDuck+cfg.Timeouts.Drain)
	}
	_, text = config("gateway.nomad.hcl", "", nil)
	alone, err := gateway.Parse("gateway.hcl", text, gateway.DefaultConfig())
	require.NoError(t, err, "%s", text)
	require.Empty(t, alone.Controller.Addresses)
}

// chroot is a chroot of Nomad's exec driver with remuda at that path in it, and nothing else: the
// default one is a copy of the host.
func chroot(t *testing.T, remuda string) string {
	t.Helper()
	out, err := exec.Command("ldd", binary(t, "remuda")).Output()
	require.NoError(t, err)
	files := map[string]string{binary(t, "remuda"): remuda}
	for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		real, err := filepath.EvalSymlinks(lib)
		require.NoError(t, err)
		files[real] = lib
	}
	var b strings.Builder
	for _, from := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "    %q = %q\n", from, files[from])
	}
	return b.String()
}

// nomadForController are the settings of a Nomad client that runs the controller's job with
// the exec driver, with remuda at that path; raft is the directory for its state.
func nomadForController(t *testing.T, remuda, raft string) string {
	t.Helper()
	return fmt.Sprintf(`client {
  chroot_env = {
%s  }
  host_volume "remuda-controller" {
    path = %q
  }
}
`, chroot(t, remuda), raft)
}

// stopController stops the controller's job, where there is one. It is not purged: Nomad's client can
// miss the deletion and leave the task running (nomad#28242).
func stopController(t *testing.T, d *dev, c *api.Client) {
	t.Helper()
	_, _, err := d.nomad.Jobs().Deregister("controller", false, nil)
	require.NoError(t, err)
	eventually(t, time.Minute, "the controller to end", func() error {
		if c.Live(context.Background()) == nil {
			return errors.New("it answers")
		}
		return nil
	})
}

// controllerOnNomad runs the controller as a Nomad job: what it knows outlives the job. It is
// one server: all servers have the same two ports, so each needs a host of its own.
// TestControllerServers has three, configsOfTheJobs the config of three.
func controllerOnNomad(t *testing.T, d *dev, raft string) {
	nodes, _, err := d.nomad.Nodes().List(nil)
	require.NoError(t, err)
	require.True(t, nodes[0].Drivers["exec"].Healthy, "the exec driver: %s", nodes[0].Drivers["exec"].HealthDescription)
	ports := d.info.SparePorts
	c, err := api.NewClient(api.Config{Addresses: []string{fmt.Sprintf("http://127.0.0.1:%d", ports[0])}})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	source, err := fs.ReadFile(jobs.Files, "controller.nomad.hcl")
	require.NoError(t, err)
	t.Cleanup(func() { stopController(t, d, c) }) // Nomad does not end its tasks when it ends.
	_, _, err = d.nomad.Variables().Create(&nomadapi.Variable{Path: "nomad/jobs/controller", Items: nomadapi.VariableItems{"raft_secret": "0123456789abcdef0123456789abcdef"}}, nil)
	require.NoError(t, err)
	vars := fmt.Sprintf("acl = false\nnomad = %q\nconsul = \"127.0.0.1:1\"\nhttp_port = %d\nraft_port = %d\n", d.nomad.Address(), ports[0], ports[1])

	for life := range 2 {
		job, err := d.parsed(string(source), vars)
		require.NoError(t, err)
		_, _, err = d.nomad.Jobs().Register(job, nil)
		require.NoError(t, err)
		eventually(t, time.Minute, "the controller to lead and to be healthy", func() error {
			if err := c.Ready(t.Context()); err != nil {
				return err
			}
			allocs, _, err := d.nomad.Jobs().Allocations("controller", false, nil)
			if err != nil {
				return err
			}
			for _, a := range allocs {
				if a.ClientStatus == nomadapi.AllocClientStatusRunning && a.DeploymentStatus != nil && a.DeploymentStatus.Healthy != nil && *a.DeploymentStatus.Healthy {
					return nil
				}
			}
			return fmt.Errorf("%d allocations", len(allocs))
		})
		if life == 0 {
			_, err := c.SetSwitch(t.Context(), "cap-max-replicas/of-the-first-life", api.SwitchRequest{Value: "7"})
			require.NoError(t, err)
		}
		eventually(t, time.Minute, "the controller to know the node", func() error {
			nodes, _, err := c.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
			if err == nil && len(nodes) != 1 {
				err = fmt.Errorf("%d nodes", len(nodes))
			}
			return err
		})
		switches, _, err := c.Switches(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
		require.Len(t, switches, 1)
		require.Equal(t, "7", switches[0].Value)
		stopController(t, d, c)
	}
	left, err := os.ReadDir(raft)
	require.NoError(t, err)
	require.NotEmpty(t, left)
}
