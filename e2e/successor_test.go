//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/jobs"
)

// TestPairRolledInPlace: a pair takes most of the only GPU, and is updated under 24 streams. The old pair serves, and
// fails over, until the new one is WARM beside it; no stream breaks, and none waits for as long as the load takes. A
// version that does not load changes nothing.
func TestPairRolledInPlace(t *testing.T) {
	t.Parallel()
	const load, clients, tokens = 8 * time.Second, 24, 40
	f := newFleet(t, 1, func(o *devcluster.Options) { o.GPUs, o.Seats = 1, 4 })
	w := &twins{f}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(stamped(t, paced(t, jobs.Failover, 50))), 0o600))
	apply := func(delay string) {
		t.Helper()
		path := filepath.Join(f.dir, "pair.model.hcl")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `model "pair" {
  replicas = 1
  max      = 1
  failover = true

  update {
    surge = 0
  }

  variant "sim" {
    gpu {
      count = 1
    }

    weights       = "64MiB"
    memory        = "60GiB"
    shared_memory = "64MiB"
    sleep_memory  = "900MiB"
    cost          = 1
    slots         = 64
    engine        = "sim"
    job           = "failover.nomad.hcl"
    vars = {
      weights        = "64MiB"
      slots          = "64"
      kv_memory      = "50GiB"
      context_memory = "400MiB"
      init_delay     = %q
    }
  }
}
`, delay), 0o600))
		f.remuda("model", "apply", "-detach", path)
	}
	apply("100ms")
	old := f.hot("pair", 1)[0]
	eventually(t, time.Minute, "the standby", func() error { return w.standsBy("pair") })

	s := stream(t, f.info.Gateway, "pair", clients, tokens)
	apply(load.String())
	began := time.Now()
	successor := func() (api.Replica, error) {
		replicas, err := f.replicas("pair")
		for name, r := range replicas {
			if name != old {
				return r, err
			}
		}
		return api.Replica{}, errors.Join(err, errors.New("there is none"))
	}
	eventually(t, time.Minute, "a successor that loads", func() error {
		r, err := successor()
		if err == nil && r.Status != "starting" {
			err = fmt.Errorf("it is %s", r.Status)
		}
		return err
	})
	f.remuda("failover", old, "-timeout", "20s") // its standby can take over meanwhile
	var next string
	eventually(t, time.Minute, "a successor that is WARM", func() error {
		replicas, err := f.replicas("pair")
		if err != nil {
			return err
		}
		r, err := successor()
		switch {
		case err != nil:
			return err
		case r.Status == "starting" && replicas[old].Status != "serving":
			t.Fatalf("the old pair is %q while its successor is %s", replicas[old].Status, r.Status)
		case r.Status == "starting" || r.Status == "placed":
			return fmt.Errorf("it is %s", r.Status)
		}
		next = r.Name
		return nil
	})
	loaded := time.Since(began)
	require.Greater(t, loaded, load)
	eventually(t, time.Minute, "the successor to serve", func() error {
		now, err := f.isHot("pair", 1)
		if err == nil && now[0] != next {
			err = errors.New(f.why("pair"))
		}
		return err
	})
	served := time.Since(began)
	eventually(t, 5*time.Second, "its standby, which has loaded as well", func() error { return w.standsBy("pair") })
	time.Sleep(time.Second)
	count, failed, longest := s.end()
	t.Logf("WARM after %s, serving after %s; %d streams served, %d broken, the longest waited %s for its first token, and the load takes %s",
		loaded.Round(time.Millisecond), served.Round(time.Millisecond), count, len(failed), longest.Round(time.Millisecond), load)
	require.Empty(t, failed)
	require.Less(t, longest, load-time.Second)

	// A version that does not load.
	eventually(t, time.Minute, "the end of the rollout", func() error {
		m, _, err := f.api.Model(t.Context(), "pair", api.QueryOptions{})
		if err == nil && len(m.Model.Rollouts) > 0 {
			err = fmt.Errorf("it is %v", m.Model.Rollouts)
		}
		return err
	})
	s = stream(t, f.info.Gateway, "pair", clients, tokens)
	apply("no time at all")
	eventually(t, 2*time.Minute, "the end of the version that does not load", func() error {
		replicas, err := f.replicas("pair")
		m, _, also := f.api.Model(t.Context(), "pair", api.QueryOptions{})
		if err = errors.Join(err, also); err == nil && (m.Model.Rollouts["sim"].Status != "rolled_back" || len(replicas) != 1) {
			err = fmt.Errorf("%v, and there are %d replicas", m.Model.Rollouts, len(replicas))
		}
		return err
	})
	require.Equal(t, []string{next}, f.hot("pair", 1))
	count, failed, longest = s.end()
	t.Logf("%d streams served beside a version that does not load, the longest waited %s for its first token", count, longest.Round(time.Millisecond))
	require.Empty(t, failed)
}
