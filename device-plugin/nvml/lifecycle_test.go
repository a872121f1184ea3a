package nvml

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// When a worker may start again, and where it stands.
func TestLifecycle(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := lifecycle{retry: time.Second, maxRetry: 10 * time.Second}
	require.Equal(t, absent, l.phase)
	require.Zero(t, l.wait(now))
	l.started()
	require.Equal(t, starting, l.phase)
	l.answered()
	require.Equal(t, ready, l.phase)
	l.hangs()
	require.Equal(t, faulted, l.phase)
	require.Zero(t, l.failures, "it may return")
	l.answered()
	for _, pause := range []time.Duration{0, 1, 2, 4, 8, 10, 10} {
		l.started()
		l.ended(now)
		require.Equal(t, faulted, l.phase)
		require.Equal(t, pause*time.Second, l.wait(now))
		require.Zero(t, l.wait(now.Add(time.Minute)))
	}
	l.started()
	l.answered()
	l.ended(now)
	require.Zero(t, l.wait(now), "after an answer the count begins anew")
	l.ended(now)
	l.renewed()
	require.Equal(t, absent, l.phase)
	require.Zero(t, l.wait(now))
	require.Equal(t, "absent starting ready faulted", absent.String()+" "+starting.String()+" "+ready.String()+" "+faulted.String())
}

// A record is read by whoever made it, also while and after it is written elsewhere.
func TestRecord(t *testing.T) {
	r, fd, err := newRecord()
	require.NoError(t, err)
	w, err := OpenRecord(fd)
	require.NoError(t, err)
	symbol, _ := r.Call(3)
	require.Empty(t, symbol)
	w.Enter(3, "nvmlDeviceGetCurrentClocksThrottleReasonsAndMore")
	w.Enter(3, "nvmlInit")
	w.Enter(MaxGPUs, "a name that is longer than its slot, which has room for fifty-six bytes only")
	symbol, since := r.Call(3)
	require.Equal(t, "nvmlInit", symbol)
	require.Less(t, since, time.Minute)
	symbol, _ = r.Call(MaxGPUs)
	require.Len(t, symbol, slotBytes-slotName)
	w.Leave(3)
	symbol, _ = r.Call(3)
	require.Empty(t, symbol)
	_, err = OpenRecord(0)
	require.Error(t, err, "no record")
	(*Record)(nil).Enter(0, "x")
	(*Record)(nil).Leave(0)
}
