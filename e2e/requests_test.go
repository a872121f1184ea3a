//go:build e2e

package e2e

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/internal/testkit/long"
	"remuda/jobs"
)

const (
	// pairModel has failover pairs, and streams that end when their engine does;
	// chainModel has single engines, and streams that go on at another one.
	pairModel, pairReplicas, pairSlots = "pair", 2, 24
	// The clients of a gateway alone want more slots than these engines have.
	chainModel, chainReplicas, chainSlots = "chain", 3, 8
)

// requestsWanted is how many requests TestRequests makes. In the short form every fault
// strikes once.
func requestsWanted() int64 { return int64(long.Pick(10_000, 100_000)) }

// TestRequests: everything that the platform is made of is killed in turn, and replaced
// by updates, while clients send requests with keys through two gateways, over TLS. No request fails before the
// first byte of its answer, no answer is wrong, every one that breaks off says so, and
// where streams go on at another engine none breaks off.
//
// The same clients and kills with gateways that try nothing again must show failures, or
// the clients would not see any.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, func(o *devcluster.Options) {
		o.GPUs, o.Gateways = 8, 2
	})
	r := &requests{fleet: f}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "pair.nomad.hcl"), []byte(paced(t, jobs.Failover, 200)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "chain.nomad.hcl"), []byte(paced(t, jobs.Demo, 200)), 0o600))
	f.remuda("model", "apply", "-detach", r.model(pairModel, nil, false))
	f.remuda("model", "apply", "-detach", r.model(chainModel, nil, true))
	f.hot(pairModel, pairReplicas)
	f.hot(chainModel, chainReplicas)
	r.gateways = f.twoGateways()
	r.trusting = secure(t, f.dir, r.gateways[:]...)
	for i := range 3 {
		r.keys = append(r.keys, r.key(t, fmt.Sprintf("crowd-%d", i)))
	}
	inTurn(t, r, r.use, []part[*requests]{
		{"tokens are counted", tokensAreCounted},
		{"everything is killed", everythingKilled},
		{"without retries", withoutRetries},
	})
}

// use says whose test the cluster serves.
func (r *requests) use(t *testing.T) {
	r.t = t
	for _, g := range r.gateways {
		g.t = t
	}
}

// requests is a cluster with two gateways and two models under load.
type requests struct {
	*fleet
	gateways [2]*gatewayProcess
	trusting *tls.Config
	keys     []string
	traffic  *crowd
}

// paced gives a job's simulated engines a rate in tokens per second: slow enough that streams meet
// what happens to them, and fast enough that clients get through.
func paced(t *testing.T, job string, rate int) string {
	slots := `"-max-num-seqs", local.slots,`
	require.Contains(t, job, slots)
	return strings.ReplaceAll(job, slots, fmt.Sprintf("%s\n          \"-decode-rate\", \"%d\",\n          \"-prefill-rate\", \"0\",", slots, rate))
}

// model writes the model file of one of the two models.
func (r *requests) model(name string, vars map[string]string, continuation bool) string {
	r.t.Helper()
	all := map[string]string{"weights": "32MiB"}
	replicas, failover, slots := chainReplicas, false, chainSlots
	if name == pairModel {
		// Two copies are enough to find out who answers; the memory service has its own tests.
		replicas, failover, slots, all["gms"] = pairReplicas, true, pairSlots, ""
	}
	for k, v := range vars {
		all[k] = v
	}
	var set []string
	for k, v := range all {
		set = append(set, fmt.Sprintf("%s = %q", k, v))
	}
	slices.Sort(set)
	path := filepath.Join(r.dir, name+".model.hcl")
	require.NoError(r.t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  min          = 0
  max          = 8
  replicas     = %d
  failover     = %t
  continuation = %t

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    cost    = 1
    slots   = %d
    engine  = "sim"
    job     = %q
    vars    = { %s }
  }
}
`, name, replicas, failover, continuation, slots, name+".nomad.hcl", strings.Join(set, ", ")), 0o600))
	return path
}

// everythingKilled goes through all faults at least once, and through those that heal
// fastest until there were enough requests.
func everythingKilled(t *testing.T, r *requests) {
	want := requestsWanted()
	r.traffic = newCrowd(t, r.gateways, r.trusting, r.keys, 48, pairModel, chainModel)
	r.traffic.flows(500)
	once := []fault{
		{"the engine of a replica of each model", r.killEngines},
		{"the shim of a replica of each model", r.killShims},
		{"gateway 1", func() { r.gateways[0].restart(syscall.SIGKILL) }},
		{"lockd", r.killLockd},
		{"the controller's leader", r.killLeader},
		{"a whole allocation of each model", r.killAllocations},
		{"gateway 2", func() { r.gateways[1].restart(syscall.SIGKILL) }},
		{"Consul", r.killConsul},
		{"every engine of both models at once", r.killAllEngines},
		{"gateway 2 is told to end", func() { r.gateways[1].restart(syscall.SIGTERM) }},
		{"a rolling update", r.rollingUpdate},
		{"a failed update", r.failedUpdate},
	}
	for _, x := range once {
		r.suffer(x)
	}
	again := slices.Clone(once[:8])
	for i := 0; r.traffic.answered.Load() < want; i++ {
		r.suffer(again[i%len(again)])
	}
	r.traffic.stop()
	r.traffic.report()
	require.GreaterOrEqual(t, r.traffic.answered.Load(), want)
	for _, m := range []string{pairModel, chainModel} {
		r.traffic.requireNone(m, unanswered, wrong, brokenSilently)
		require.NotZero(t, r.traffic.seen(m).ended[whole])
		require.NotZero(t, r.traffic.seen(m).ended[left])
	}
	r.traffic.requireNone(chainModel, brokenLoudly)
	require.NotZero(t, r.traffic.seen(pairModel).ended[brokenLoudly], "no kill met a stream: this test has shown nothing")
	r.enginesAtRest()
}

// withoutRetries is the control run.
func withoutRetries(t *testing.T, r *requests) {
	for _, g := range r.gateways {
		g.configure("retries {\n  attempts = 1\n}\n")
	}
	r.remuda("model", "apply", r.model(chainModel, r.chainVars(), false))
	r.hot(chainModel, chainReplicas)
	r.traffic = newCrowd(t, r.gateways, r.trusting, r.keys, 48, pairModel, chainModel)
	r.traffic.flows(500)
	fails := func(m string) bool {
		seen := r.traffic.seen(m)
		return seen.ended[unanswered] > 0 && seen.ended[brokenLoudly] > 0
	}
	for range 5 {
		r.suffer(fault{"the engine of a replica of each model", r.killEngines})
		if fails(pairModel) && fails(chainModel) {
			break
		}
	}
	r.traffic.stop()
	r.traffic.report()
	for _, m := range []string{pairModel, chainModel} {
		seen := r.traffic.seen(m)
		require.NotZero(t, seen.ended[unanswered], "requests to %s that were not answered: the clients do not see them", m)
		require.NotZero(t, seen.ended[brokenLoudly], "streams of %s that broke off: the clients do not see them", m)
		r.traffic.requireNone(m, wrong, brokenSilently)
	}
}
