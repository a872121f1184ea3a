package plugin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

func readSources(t *testing.T, values map[string]string) plugin.Sources {
	t.Helper()
	r := plugin.ReadSettings(values)
	c := plugin.ReadSources(r)
	require.NoError(t, r.Err())
	return c
}

func TestTheControllerIsOneOnlyWhereSomebodySaysSo(t *testing.T) {
	require.Nil(t, readSources(t, nil).Controller)
	require.NotNil(t, readSources(t, map[string]string{"controller": "c:1"}).Controller)
	t.Setenv("REMUDA_ADDR", "http://c:1")
	require.NotNil(t, readSources(t, nil).Controller)
	require.Nil(t, readSources(t, map[string]string{"controller": "none"}).Controller)
}

func TestSomebodyMustBeAsked(t *testing.T) {
	r := plugin.ReadSettings(map[string]string{"consul": "none"})
	plugin.ReadSources(r)
	require.ErrorContains(t, r.Err(), "set at least one of them")
	r = plugin.ReadSettings(map[string]string{"consul": "c:1", "prometheus": "http://p"})
	plugin.ReadSources(r)
	require.ErrorContains(t, r.Err(), "set only one")
}

// The real sources: a Prometheus server that knows nothing, and no controller.
func TestOpen(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[]}}`))
	}))
	defer server.Close()
	o, err := plugin.OpenSources(readSources(t, map[string]string{"prometheus": server.URL}), hclog.NewNullLogger())
	require.NoError(t, err)
	defer o.Close()
	s, err := o.Observer.Observe(t.Context(), observe.Target{Model: "m", Group: &observe.JobGroup{Variant: "v"}})
	require.NoError(t, err)
	require.Equal(t, []string{"v"}, []string{s.Variants[0].Variant})

	both, err := plugin.OpenSources(readSources(t, map[string]string{"controller": server.URL, "consul": "127.0.0.1:1", "scrape_interval": "2s"}), hclog.NewNullLogger())
	require.NoError(t, err)
	both.Close()
	for _, bad := range []map[string]string{{"controller": "ftp://x"}, {"prometheus": "::"}, {"consul": "http://a b"}} {
		_, err := plugin.OpenSources(readSources(t, bad), hclog.NewNullLogger())
		require.Error(t, err, "%v", bad)
	}
}
