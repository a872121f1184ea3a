//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/jobs"
)

// plainModel is a model file whose replicas are single engines on the simulator.
func plainModel(name string, replicas, slots, most int) string {
	return fmt.Sprintf(`model %q {
  min      = 0
  max      = %d
  replicas = %d

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    cost    = 1
    slots   = %d
    job     = "demo.nomad.hcl"
    vars    = { weights = "32MiB" }
  }
}
`, name, most, replicas, slots)
}

// plainDemo writes the job file that plainModel's variants name.
func plainDemo(t testing.TB, dir string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "demo.nomad.hcl"), []byte(jobs.Demo), 0o600))
}

// plainControlled starts a cluster with one model of ours, of which one replica runs.
func plainControlled(t *testing.T, dir, model string, slots, most int) *dev {
	t.Helper()
	path := filepath.Join(dir, model+".model.hcl")
	require.NoError(t, os.WriteFile(path, []byte(plainModel(model, 1, slots, most)), 0o600))
	plainDemo(t, dir)
	d := newDev(t, "-no-autoscaler", "-model", path, "-gpus", "3", "-seats", "2")
	eventually(t, time.Minute, "one replica to serve", func() error {
		st, err := plainStatus(d, model)
		if err == nil && (st.Counts.Hot != 1 || len(st.Replicas) != 1) {
			err = fmt.Errorf("%+v", st.Counts)
		}
		return err
	})
	return d
}

func plainStatus(d *dev, model string) (api.ModelStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, _, err := d.controller.Model(ctx, model, api.QueryOptions{})
	return st, err
}

// plainGrown waits until a model has at least so many replicas that serve.
func plainGrown(d *dev, a *plainProcess, model string, least int) {
	d.t.Helper()
	eventually(d.t, 2*time.Minute, fmt.Sprintf("%d replicas of %s", least, model), func() error {
		if err := a.running(); err != nil {
			return err
		}
		st, err := plainStatus(d, model)
		if err == nil && st.Counts.Hot < least {
			err = fmt.Errorf("%+v, wanted are %d", st.Counts, st.Model.Target)
		}
		return err
	})
}

// plainPolicy is a policy for a model of the controller's, with checks: a file of it where
// name is the model, and a scaling block of a job where name is empty.
func plainPolicy(name, model string, least, most int, checks string) string {
	label := ""
	if name != "" {
		label = fmt.Sprintf(" %q", name)
	}
	return fmt.Sprintf(`scaling%s {
  enabled = true
  min     = %d
  max     = %d
  policy {
    cooldown            = "1s"
    evaluation_interval = %q
%s
    target "remuda" {
      model = %q
    }
  }
}
`, label, least, most, plainInterval, checks, model)
}

// plainCarrier is a Nomad job that does nothing but carry a policy.
func plainCarrier(name, scaling string) string {
	return fmt.Sprintf(`job %q {
  group "policy" {
    count = 0
%s
    task "none" {
      driver = "raw_exec"
      config {
        command = "true"
      }
    }
  }
}
`, name, scaling)
}

// TestAutoscalerOld: the plugin works with nomad-autoscaler 0.4.7 too, the oldest that
// speaks its protocol: strategy, target and APM. The policy is in a job, as 0.4.7 ends with
// a nil pointer on every policy that it reads from a file (policy/file/source.go: what
// GetLatestVersion returns was never set).
func TestAutoscalerOld(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	d := plainControlled(t, dir, "old", 4, 3)
	version, err := exec.Command(toolPath(t, "nomad-autoscaler-0.4.7"), "version").CombinedOutput()
	require.NoError(t, err, "%s", version)
	require.Contains(t, string(version), "v0.4.7")
	plainRegister(d, plainCarrier("policy-of-old", plainPolicy("", "old", 0, 3, `
    check "capacity" {
      source = "remuda"
      query  = "queue/old"
      strategy "remuda-capacity" {
        model = "old"
      }
    }
`)))
	decisions := filepath.Join(dir, "decisions.json")
	where := map[string]string{"controller": d.info.Controller, "consul": d.info.Consul}
	with := maps.Clone(where)
	with["decisions"] = decisions
	a := plainAutoscaler(d, "nomad-autoscaler-0.4.7", dir, nil,
		plainBlock{kind: "apm", name: "remuda", args: []string{"apm"}, config: where},
		plainBlock{kind: "target", name: "remuda", args: []string{"target"}, config: map[string]string{"controller": d.info.Controller}},
		plainStrategy("remuda-capacity", with))
	load := startPlainLoad(t, "old", 12, func() (string, error) { return d.info.Gateway, nil })
	begin := time.Now()
	plainGrown(d, a, "old", 3)
	t.Logf("3 replicas after %s", time.Since(begin).Round(time.Second))
	load.end()
	a.end()
	plainReplay(t, decisions)
}
