package gms_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/internal/testkit/gmstest"
)

func TestConfigNamesEveryBadField(t *testing.T) {
	_, err := gms.New(gms.Config{OOMLimit: -1, GPUs: []gms.GPU{{UUID: "a/b"}, {UUID: "x"}, {UUID: "x"}}})
	for _, want := range []string{
		"socket dir is empty", `GPU "a/b": must be a unique name`, `GPU "a/b": backend must be set`, `GPU "x": must be a unique name`,
		"oom retry is 0s", "first message is 0s", "frame is 0s", "write is 0s",
		"oom limit is -1ns", "max connections is 0", "logger must be set",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = gms.New(gms.DefaultConfig())
	require.ErrorContains(t, err, "GPUs are missing: must be at least one")

	cfg := gms.DefaultConfig()
	cfg.SocketDir = "/" + strings.Repeat("d", 100)
	cfg.GPUs = []gms.GPU{{UUID: uuid, Backend: gmstest.NewBackend(0)}}
	_, err = gms.New(cfg)
	require.ErrorContains(t, err, "must be at most 107")
	cfg.SocketDir = "/run"
	cfg.Metrics = prometheus.NewRegistry()
	_, err = gms.New(cfg)
	require.NoError(t, err)
	_, err = gms.New(cfg)
	require.ErrorContains(t, err, "register metrics")
}
