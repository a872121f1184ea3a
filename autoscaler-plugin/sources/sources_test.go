package sources_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/settings"
	"remuda/autoscaler-plugin/sources"
)

func read(t *testing.T, values map[string]string) sources.Config {
	t.Helper()
	r := settings.Read(values)
	c := sources.Read(r)
	require.NoError(t, r.Err())
	return c
}

func TestTheControllerIsOneOnlyWhereSomebodySaysSo(t *testing.T) {
	require.Nil(t, read(t, nil).Controller)
	require.NotNil(t, read(t, map[string]string{"controller": "c:1"}).Controller)
	t.Setenv("REMUDA_ADDR", "http://c:1")
	require.NotNil(t, read(t, nil).Controller)
	require.Nil(t, read(t, map[string]string{"controller": "none"}).Controller)
}

func TestSomebodyMustBeAsked(t *testing.T) {
	r := settings.Read(map[string]string{"consul": "none"})
	sources.Read(r)
	require.ErrorContains(t, r.Err(), "set at least one of them")
	r = settings.Read(map[string]string{"consul": "c:1", "prometheus": "http://p"})
	sources.Read(r)
	require.ErrorContains(t, r.Err(), "set only one")
}

func TestKeyTellsPlacesApart(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range []map[string]string{nil, {"consul": "a"}, {"consul": "b"}, {"consul_token": "a"}, {"prometheus": "a"}, {"prometheus_token": "a"},
		{"scrape_interval": "3s"}, {"controller": "a"}, {"controller": "a,b"}, {"controller": "a", "token": "t"}, {"controller": "a", "ca_cert": "t"}} {
		c := read(t, v)
		require.False(t, seen[c.Key()], "%v", v)
		seen[c.Key()] = true
		again := read(t, v)
		require.Equal(t, c.Key(), again.Key())
	}
}

// The real sources: a Prometheus server that knows nothing, and no controller.
func TestOpen(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[]}}`))
	}))
	defer server.Close()
	o, err := sources.Open(read(t, map[string]string{"prometheus": server.URL}), hclog.NewNullLogger())
	require.NoError(t, err)
	defer o.Close()
	s, err := o.Observer.Observe(t.Context(), observe.Target{Model: "m", Variants: []observe.VariantSpec{{Variant: "v"}}})
	require.NoError(t, err)
	require.Equal(t, []string{"v"}, []string{s.Variants[0].Variant})

	both, err := sources.Open(read(t, map[string]string{"controller": server.URL, "consul": "127.0.0.1:1", "scrape_interval": "2s"}), hclog.NewNullLogger())
	require.NoError(t, err)
	both.Close()
	for _, bad := range []map[string]string{{"controller": "ftp://x"}, {"prometheus": "::"}, {"consul": "http://a b"}} {
		_, err := sources.Open(read(t, bad), hclog.NewNullLogger())
		require.Error(t, err, "%v", bad)
	}
}
