package dispatch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// patient waits for a day, and is told nothing.
type patient struct{}

func (patient) Until(dispatch.Standing) time.Time { return time.Now().Add(24 * time.Hour) }
func (patient) Next() time.Time                   { return time.Time{} }
func (patient) Look(dispatch.Standing) error      { return nil }

// inAnElection is for how long the controller may be away before a share of no slots counts as one.
const inAnElection = 5*time.Second - time.Millisecond

const theReplica = "m:v:00000000-0000-4000-8000-000000000001"

// sharing is a dispatcher that reports, with a replica of 4 slots.
func sharing(t *testing.T) *dispatch.Dispatcher {
	table, err := balance.New(balance.Config{Remember: time.Minute})
	require.NoError(t, err)
	keys, err := queue.NewKeys(queue.KeyLimit{}, nil)
	require.NoError(t, err)
	d := dispatch.New(dispatch.Config{Length: 10, Aging: time.Minute, Table: table, Keys: keys, Reports: true,
		Budget: queue.BudgetConfig{Ratio: .2, Floor: 10, Window: 10 * time.Second}})
	t.Cleanup(d.Close)
	update(t, d)
	return d
}

// update gives the replica its engine.
func update(t *testing.T, d *dispatch.Dispatcher) {
	name, err := replica.ParseName(theReplica)
	require.NoError(t, err)
	d.Update([]replica.Engine{{Name: name, Role: replica.RolePrimary, Address: "127.0.0.1", Port: 1, Slots: 4, Passing: true}}, false)
}

func slots(units int) []api.GatewayShare {
	return []api.GatewayShare{{Kind: api.ShareSlots, Name: theReplica, Units: units}}
}

// acquire asks for a slot. The channel gets it.
func acquire(t *testing.T, d *dispatch.Dispatcher) <-chan *dispatch.Grant {
	got := make(chan *dispatch.Grant, 1)
	go func() {
		if g, err := d.Acquire(t.Context(), &dispatch.Request{ID: "a", Model: "m", Key: "k"}, patient{}); err == nil {
			got <- g
		}
	}()
	return got
}

// served reports whether a request has its slot, once nothing moves any more.
func served(got <-chan *dispatch.Grant) bool {
	synctest.Wait()
	return len(got) == 1
}

// While the controller is away, a replica of which it has never given a share is used whole: else its clients
// would wait for as long. Other gateways may have the slots of one of which it has given none.
func TestControllerThatGoesAwayBeforeItGivesSlots(t *testing.T) {
	for name, tc := range map[string]struct {
		given [][]api.GatewayShare
		used  bool
	}{
		"nothing said":                     {[][]api.GatewayShare{nil}, true},
		"none given":                       {[][]api.GatewayShare{slots(0)}, false},
		"none given, then nothing said":    {[][]api.GatewayShare{slots(0), nil}, false},
		"some given, then nothing said":    {[][]api.GatewayShare{slots(2), nil}, false},
		"none given, then some":            {[][]api.GatewayShare{slots(0), slots(1)}, true},
		"of another replica, none of this": {[][]api.GatewayShare{{{Kind: api.ShareSlots, Name: "m:v:other"}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := sharing(t)
				for _, given := range tc.given {
					d.Claims(10)
					d.Share(given)
				}
				d.Away(true)
				got := acquire(t, d)
				time.Sleep(inAnElection)
				require.Equal(t, tc.used, served(got))
				d.Away(false)
				d.Share(slots(1))
				require.True(t, served(got), "the controller is back")
			})
		})
	}
}

// A share of no slots counts as one slot once the controller has been away for five seconds, until it is back.
func TestAShareOfNoSlotsInALongOutage(t *testing.T) {
	for name, last := range map[string][]api.GatewayShare{"none given": slots(0), "none given, then nothing said": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := sharing(t)
				for _, given := range [][]api.GatewayShare{slots(0), last} {
					d.Claims(10)
					d.Share(given)
				}
				var got [4]<-chan *dispatch.Grant
				for i := range got {
					got[i] = acquire(t, d)
					synctest.Wait()
				}
				for range 3 { // elections
					d.Away(true)
					time.Sleep(inAnElection)
					d.Away(true) // it still is
					require.False(t, served(got[0]))
					d.Away(false)
				}
				d.Away(true)
				time.Sleep(inAnElection)
				require.False(t, served(got[0]))
				time.Sleep(5*time.Second - inAnElection)
				require.True(t, served(got[0]))
				require.False(t, served(got[1]), "one at a time")
				claim := d.Claims(10)[0]
				require.Zero(t, claim.Held, "the controller did not give it")
				require.Equal(t, 1, claim.Used)
				update(t, d)
				d.Direct(balance.Orders{Models: map[string]bool{"m": false}}) // an old state
				d.Share(last)                                                 // of a leader that has lost its majority
				(<-got[0]).Release()
				require.True(t, served(got[1]))
				require.False(t, served(got[2]))
				d.Away(false)
				(<-got[1]).Release()
				require.False(t, served(got[2]), "the controller is back")
				d.Away(true)
				d.Close()
				time.Sleep(time.Minute)
				require.False(t, served(got[2]), "it is closed")
				d.Away(false)
				d.Share(slots(2))
				require.True(t, served(got[2]))
				require.True(t, served(got[3]))
			})
		})
	}
}

// Only a replica of which the controller has said nothing is worth a report at once.
func TestAReplicaWithoutAShareIsUrgent(t *testing.T) {
	d := sharing(t)
	require.Len(t, d.Urgent(), 1)
	for name, tc := range map[string]struct {
		given  []api.GatewayShare
		urgent int
	}{
		"nothing said": {nil, 1},
		"none given":   {slots(0), 0},
		"some given":   {slots(1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := sharing(t)
			d.TakeWanted(1)
			d.Claims(10)
			d.Share(tc.given)
			update(t, d)
			require.Len(t, d.Urgent(), tc.urgent)
		})
	}
}

// A replica that had no engine before the controller went away is used when it has one: no gateway has its slots.
func TestReplicaThatComesBackWhileTheControllerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := sharing(t)
		d.Claims(10)
		d.Share(slots(4))
		d.Update(nil, false)
		d.Claims(10)
		d.Share(nil)
		d.Away(true)
		update(t, d)
		require.True(t, served(acquire(t, d)))
	})
}

// What is used whole while the controller is away is not used any more as soon as it is back.
func TestControllerThatIsBackBeforeItGivesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := sharing(t)
		d.Away(true)
		require.True(t, served(acquire(t, d)))
		d.Away(false)
		got := acquire(t, d)
		require.False(t, served(got))
		d.Share(slots(2))
		require.True(t, served(got))
	})
}
