//go:build e2e

package e2e

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
)

// BenchmarkScaleToHot takes a model from 0 to 1 replica, again and again, and splits
// the time until the replica is HOT: ours (from the request to Nomad's having the job,
// and from the engine's being in Consul to HOT), Nomad's (until the engine's task has
// started) and the engine's (until it serves).
func BenchmarkScaleToHot(b *testing.B) {
	f := newFleet(b, 1, func(*devcluster.Options) {})
	f.remuda("model", "apply", f.modelFile("bench", 0, nil))
	const rounds = 30
	for range b.N {
		var ours, register, notice, nomads, engines, total []time.Duration
		for range rounds {
			s := f.scaleToHot(b, "bench")
			register, notice = append(register, s.register), append(notice, s.notice)
			ours, nomads, engines, total = append(ours, s.register+s.notice), append(nomads, s.nomad), append(engines, s.engine), append(total, s.total)
		}
		for name, d := range map[string][]time.Duration{"ours": ours, "register": register, "notice": notice, "nomad": nomads, "engine": engines, "total": total} {
			slices.Sort(d)
			b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, name+"-p50-ms")
			b.ReportMetric(float64(d[len(d)-1].Microseconds())/1000, name+"-max-ms")
		}
		b.ReportMetric(rounds, "n")
	}
}

// shares of the time from a request to HOT.
type shares struct{ register, nomad, engine, notice, total time.Duration }

func (f *fleet) scaleToHot(t testing.TB, model string) shares {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, meta, err := f.api.Model(ctx, model, api.QueryOptions{})
	require.NoError(t, err)

	passing, hot := make(chan time.Time, 1), make(chan time.Time, 1)
	go func() {
		q := &consulapi.QueryOptions{RequireConsistent: true}
		for ctx.Err() == nil {
			entries, m, err := f.consul.Health().Service(replica.ServiceName, "model="+model, true, q.WithContext(ctx))
			if err == nil && len(entries) > 0 {
				passing <- time.Now()
				return
			}
			if err == nil {
				q.WaitIndex = m.LastIndex
			}
		}
	}()
	go func() {
		_ = api.Watch(ctx, api.QueryOptions{Index: meta.Index}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
			st, m, err := f.api.Model(ctx, model, q)
			if err == nil && st.Counts.Hot == 1 {
				hot <- time.Now()
				<-ctx.Done()
			}
			return m, err
		}, nil)
	}()
	begin := time.Now()
	_, err = f.api.Scale(ctx, model, api.ScaleRequest{Replicas: 1})
	require.NoError(t, err)
	at := map[string]time.Time{}
	for name, c := range map[string]chan time.Time{"passing": passing, "hot": hot} {
		select {
		case at[name] = <-c:
		case <-ctx.Done():
			t.Fatalf("the replica is not %s", name)
		}
	}
	name := f.hot(model, 1)[0]
	job, _, err := f.nomad.Jobs().Info(name, nil)
	require.NoError(t, err)
	registered := time.Unix(0, *job.SubmitTime)
	allocs, _, err := f.nomad.Jobs().Allocations(name, false, nil)
	require.NoError(t, err)
	require.Len(t, allocs, 1)
	var started time.Time
	eventually(t, time.Minute, "Nomad's word of when the task has started", func() error {
		alloc, _, err := f.nomad.Allocations().Info(allocs[0].ID, nil)
		if err == nil && (alloc.TaskStates["primary"] == nil || alloc.TaskStates["primary"].StartedAt.IsZero()) {
			return errors.New("none yet")
		}
		if err == nil {
			started = alloc.TaskStates["primary"].StartedAt
		}
		return err
	})

	f.remuda("scale", model, "0")
	f.hot(model, 0)
	s := shares{register: registered.Sub(begin), nomad: started.Sub(registered), engine: at["passing"].Sub(started), notice: max(0, at["hot"].Sub(at["passing"])), total: at["hot"].Sub(begin)}
	t.Logf("register %s, nomad %s, engine %s, notice %s", s.register, s.nomad, s.engine, s.notice)
	return s
}
