package dispatch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// patient waits for a minute, and is told nothing.
type patient struct{}

func (patient) Until(dispatch.Standing) time.Time { return time.Now().Add(time.Minute) }
func (patient) Next() time.Time                   { return time.Time{} }
func (patient) Look(dispatch.Standing) error      { return nil }

// A replica whose slots the controller has not given is used once the controller is away, also one of
// which it has given none so far: else its clients would wait for as long as the controller is away.
func TestControllerThatGoesAwayBeforeItGivesSlots(t *testing.T) {
	for name, given := range map[string][]api.GatewayShare{
		"nothing said": nil,
		"none given":   {{Kind: api.ShareSlots, Name: "m:v:00000000-0000-4000-8000-000000000001"}},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := balance.New(balance.Config{Remember: time.Minute})
			require.NoError(t, err)
			keys, err := queue.NewKeys(queue.KeyLimit{}, nil)
			require.NoError(t, err)
			d := dispatch.New(dispatch.Config{Length: 10, Aging: time.Minute, Table: table, Keys: keys, Reports: true,
				Budget: queue.BudgetConfig{Ratio: .2, Floor: 10, Window: 10 * time.Second}})
			t.Cleanup(d.Close)
			engine := replica.Name{Model: "m", Variant: "v", ID: "00000000-0000-4000-8000-000000000001"}
			d.Update([]replica.Engine{{Name: engine, Role: replica.RolePrimary, Address: "127.0.0.1", Port: 1, Slots: 4, Passing: true}}, false)
			d.Share(given)
			got := make(chan error, 1)
			go func() {
				_, err := d.Acquire(t.Context(), &dispatch.Request{ID: "a", Model: "m", Key: "k"}, patient{})
				got <- err
			}()
			require.Eventually(t, func() bool { return d.Lengths()["m"].Waiting == 1 }, time.Minute, time.Millisecond, "it has no slot")
			d.Away(true)
			require.NoError(t, <-got)
		})
	}
}
