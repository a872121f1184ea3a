//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/internal/testkit/long"
	"remuda/internal/vram"
	"remuda/jobs"
)

// What an engine of orders has on the GPU, in MiB. The GPU has 80 GiB, and so no room for three caches.
const (
	ordersCache   = 30 << 10
	ordersContext = 256
	ordersWeights = 64
)

// orders gives random orders to two pairs and a single engine on one GPU, and kills.
type orders struct {
	*fleet
	client *nomad.Client
	rng    *rand.Rand
	// engines is how many each model has for a replica, and version how often it was applied.
	engines, version map[string]int
	asks             sync.WaitGroup
}

// randomOrders: after whatever orders and kills, what the controller says is in use on the GPU is what
// the engines have taken and what Nomad says, and its replicas are Nomad's and Consul's.
// REMUDA_SOAK is how long to go on.
func randomOrders(t *testing.T, f *fleet) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("REMUDA_ORDERS_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("REMUDA_ORDERS_SEED=%d", seed)
	until := time.Now().Add(time.Duration(long.Pick(30, 600)) * time.Second)
	if s := os.Getenv("REMUDA_SOAK"); s != "" {
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		until = time.Now().Add(d)
	}
	cfg := nomad.DefaultConfig()
	cfg.Address = f.info.Nomad
	client, err := nomad.New(cfg)
	require.NoError(t, err)
	o := &orders{fleet: f, client: client, rng: rand.New(rand.NewPCG(seed, 0)), engines: map[string]int{"pair-a": 2, "pair-b": 2, "single": 1}, version: map[string]int{}}
	for job, text := range map[string]string{"pair": jobs.Failover, "single": jobs.Demo} {
		const delay = `"-init-delay", var.init_delay,`
		require.Contains(t, text, delay)
		text = strings.ReplaceAll(text, delay, fmt.Sprintf(`%s "-kv-memory", "%dMiB", "-context-memory", "%dMiB",`, delay, ordersCache, ordersContext))
		text = strings.NewReplacer(`"-kv-memory", var.kv_memory,`, "", `"-context-memory", var.context_memory,`, "").Replace(text)
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, "orders-"+job+".nomad.hcl"), []byte(text), 0o600))
	}
	models := o.models()
	for _, m := range models {
		o.apply(m, 1)
	}
	o.rest()
	rests, given := 1, map[string]int{}
	for ; time.Now().Before(until); rests++ {
		for range 1 + o.rng.IntN(4) {
			given[o.order(models[o.rng.IntN(len(models))])]++
			time.Sleep(time.Duration(o.rng.IntN(1000)) * time.Millisecond)
		}
		o.rest()
	}
	t.Logf("%d times at rest; orders: %v", rests, given)
	f.clear(models...)
	o.rest()
}

func (o *orders) models() []string { return []string{"pair-a", "pair-b", "single"} }

// memory is what a replica of the model takes of the GPU in MiB while it serves.
func (o *orders) memory(model string) int {
	return ordersCache + o.engines[model]*ordersContext + ordersWeights
}

// apply applies the next version of a model.
func (o *orders) apply(model string, replicas int) {
	o.t.Helper()
	o.version[model]++
	job, _, _ := strings.Cut(model, "-")
	path := filepath.Join(o.dir, model+".model.hcl")
	require.NoError(o.t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = %d
  max      = 1
  failover = %t

  update {
    surge = 0
  }

  variant "sim" {
    gpu {
      count = 1
    }

    weights      = "%dMiB"
    memory       = "%dMiB"
    host_memory  = "%dMiB"
    sleep_memory = "%dMiB" # what a first sleep shows is too little while another replica starts
    cost         = 1
    slots        = 4
    engine       = "sim"
    job          = "orders-%s.nomad.hcl"
    vars         = { weights = "%dMiB", init_delay = "%dms" }
  }
}
`, model, replicas, job == "pair", ordersWeights, o.memory(model), ordersWeights, o.engines[model]*ordersContext, job, ordersWeights, o.version[model]), 0o600))
	o.remuda("model", "apply", "-detach", path)
}

// order gives one random order and returns what it was.
func (o *orders) order(model string) (what string) {
	o.t.Helper()
	defer func() { o.t.Logf("%s: %s", model, what) }()
	kill := func(what string, pids []int) string {
		if len(pids) == 0 {
			return "no " + what
		}
		_ = syscall.Kill(pids[o.rng.IntN(len(pids))], syscall.SIGKILL) // it may have ended by itself
		return "kill " + what
	}
	switch n := o.rng.IntN(22); {
	case n < 2:
		o.apply(model, o.rng.IntN(2))
		return "apply"
	case n < 5:
		replicas := o.rng.IntN(2)
		o.remuda("scale", "-detach", model, strconv.Itoa(replicas))
		return fmt.Sprint("scale to ", replicas)
	case n < 9:
		to := []string{"warm", "cold"}[o.rng.IntN(2)]
		if _, err := o.tryRemuda("evict", model, "-to", to); err != nil {
			return "refused eviction" // it has no replica, or none that can go there
		}
		return "evict to " + to
	case n < 13:
		o.asks.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			got, err := streamChat(ctx, o.info.Gateway, model, "asked", 8)
			if want := exact(model, "asked", 8).Text; err == nil && got.text != want {
				o.t.Errorf("%s: got %q, want %q", model, got.text, want)
			}
		})
		return "ask"
	case n < 16:
		return kill("engine", pids(o.t, enginesRunning(o.dev)))
	case n < 18:
		return kill("shim", pids(o.t, shimsRunning(o.dev)))
	case n == 18:
		o.killTasks(" lockd -socket ")
		return "kill lockd"
	case n == 19:
		o.killTasks(serviceCommand)
		return "kill memory service"
	case n == 20:
		o.killTasks(keeperCommand) // with all layouts
		return "kill keeper"
	default:
		o.killLeader()
		o.leader()
		return "kill controller"
	}
}

// rest waits until nothing moves and all agree.
func (o *orders) rest() {
	o.t.Helper()
	o.asks.Wait()
	began := time.Now()
	eventually(o.t, 2*time.Minute, "rest, at which all agree", func() error {
		time.Sleep(100 * time.Millisecond)
		before, err := o.atRest()
		if err != nil {
			return err
		}
		time.Sleep(time.Second) // a telemetry interval of Nomad
		after, err := o.atRest()
		if err == nil && before != after {
			err = fmt.Errorf("it moves: %s, then %s", before, after)
		}
		if err == nil {
			o.t.Logf("rest after %s: %s", time.Since(began).Round(time.Millisecond), after)
		}
		return err
	})
}

// atRest returns what there is, or what is not at rest or not agreed on.
func (o *orders) atRest() (string, error) {
	nodes, _, err := o.api.Nodes(o.t.Context(), api.NodeFilter{}, api.QueryOptions{})
	if err != nil || len(nodes) != 1 || len(nodes[0].GPUs) != 1 {
		return "", errors.Join(err, fmt.Errorf("nodes: %+v", nodes))
	}
	gpu := nodes[0].GPUs[0]
	if gpu.Cordoned {
		o.t.Fatalf("the GPU is cordoned: %s", gpu.CordonReason)
	}
	var all []string
	ledger, lost := 0, 0
	for _, m := range o.models() {
		replicas, err := o.replicas(m)
		if err != nil {
			return "", err
		}
		var running, serving, seats []string
		for name, r := range replicas {
			all = append(all, fmt.Sprintf("%s %s", name, r.Status))
			switch r.Status {
			case "serving":
				serving = append(serving, name)
				ledger += o.memory(m)
			case "warm":
				// An engine of a pair that dies asleep stays away, and what it had is charged until the pair
				// is awake again. Weights that nobody uses any more stay on the GPU for 10 s: a sleep that is
				// measured then keeps them, by the ledger, and no measurement lowers that.
				kept, has := int(r.SleepMemory>>20), ordersContext*len(processesOfReplica(o.t, name, "sim"))
				if kept < has || kept > ordersContext*o.engines[m]+3*ordersWeights {
					return "", fmt.Errorf("%s keeps %d MiB by the ledger, and its engines have %d MiB", name, kept, has)
				}
				ledger += kept
				lost += kept - has
			case "cold":
				continue
			default:
				return "", fmt.Errorf("%s is %s: %s", name, r.Status, r.LastError)
			}
			running, seats = append(running, name), append(seats, r.Seats...)
		}
		if err := o.agree(m, running, serving, seats); err != nil {
			return "", fmt.Errorf("%s: %w", m, err)
		}
	}
	used, _, err := vram.Used(filepath.Join(o.info.DataDir, "gpus"), gpu.UUID)
	if err != nil {
		return "", err
	}
	samples, err := o.client.GPUMemory(o.t.Context(), nodes[0].ID)
	if err != nil {
		return "", err
	}
	slices.Sort(all)
	at := fmt.Sprintf("%v; MiB: replicas %d, ledger %d, in use %d, of engines that died asleep %d, by Nomad %d",
		all, ledger, (gpu.Memory-gpu.FreeMemory)>>20, used>>20, lost, samples[gpu.UUID].Used>>20)
	if int64(ledger) != (gpu.Memory-gpu.FreeMemory)>>20 || int64(ledger-lost) != used>>20 || used != samples[gpu.UUID].Used {
		return "", errors.New(at)
	}
	return at, nil
}

// agree compares replicas with Nomad's jobs, allocations and seats, and with Consul's engines.
func (o *orders) agree(model string, running, serving, seats []string) error {
	for _, list := range [][]string{running, serving, seats} {
		slices.Sort(list)
	}
	inNomad, err := o.jobsOf(model)
	if err != nil {
		return err
	}
	engines, err := o.passing(model)
	if err != nil {
		return err
	}
	var inConsul, taken []string
	for _, e := range engines {
		inConsul = append(inConsul, e.Name.String())
	}
	for _, job := range inNomad {
		allocs, _, err := o.nomad.Jobs().Allocations(job, false, nil)
		if err != nil {
			return err
		}
		for _, a := range allocs {
			if a.ClientStatus != nomadapi.AllocClientStatusRunning {
				continue
			}
			alloc, _, err := o.nomad.Allocations().Info(a.ID, nil)
			if err != nil {
				return err
			}
			for _, task := range alloc.AllocatedResources.Tasks {
				for _, device := range task.Devices {
					taken = append(taken, device.DeviceIDs...)
				}
			}
		}
	}
	slices.Sort(inConsul)
	slices.Sort(taken)
	if !slices.Equal(running, inNomad) || !slices.Equal(serving, inConsul) || !slices.Equal(seats, taken) {
		return fmt.Errorf("replicas %v, in Nomad %v; serving %v, in Consul %v; seats %v, in Nomad %v", running, inNomad, serving, inConsul, seats, taken)
	}
	return nil
}
