package consul_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/consul"
	"remuda/internal/testkit/consultest"
)

func announcerConfig(a *consultest.Agent) consul.AnnouncerConfig {
	cfg := consul.DefaultAnnouncerConfig()
	cfg.Address, cfg.Service, cfg.CheckPath = consul.Address{Addr: a.Addr()}, "remuda-gateway", "/ready"
	cfg.Listen = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	cfg.Repair = 10 * time.Millisecond
	return cfg
}

// announce runs an announcer; the returned function ends it.
func announce(t *testing.T, cfg consul.AnnouncerConfig) (end func()) {
	t.Helper()
	announcer, err := consul.NewAnnouncer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); announcer.Run(ctx) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	return end
}

func count(n int) func([]consultest.Service) bool {
	return func(all []consultest.Service) bool { return len(all) == n }
}

func TestAnnouncementComesAndGoes(t *testing.T) {
	a := consultest.New(t)
	end := announce(t, announcerConfig(a))
	s := a.Await(t, "the registration", count(1))[0]
	require.Equal(t, "remuda-gateway", s.Name)
	require.Equal(t, "remuda-gateway-127.0.0.1:8080", s.ID)
	require.Equal(t, "127.0.0.1", s.Address)
	require.Equal(t, 8080, s.Port)
	require.Equal(t, "http://127.0.0.1:8080/ready", s.Check.HTTP)
	require.Equal(t, api.HealthCritical, s.Status, "nothing passes before Consul has asked")
	end()
	require.Empty(t, a.Services())
}

func TestAnnouncementIsRepaired(t *testing.T) {
	a := consultest.New(t)
	announce(t, announcerConfig(a))
	a.Await(t, "the registration", count(1))
	a.Forget()
	a.Await(t, "the registration after Consul forgot", count(1))
}

// TestAnnouncementReplacesAnOlderOne: what a daemon that was killed has left behind may
// say how an earlier config was checked.
func TestAnnouncementReplacesAnOlderOne(t *testing.T) {
	a := consultest.New(t)
	agent, err := api.NewClient(&api.Config{Address: a.Addr()})
	require.NoError(t, err)
	require.NoError(t, agent.Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: "remuda-gateway-127.0.0.1:8080", Name: "remuda-gateway", Address: "127.0.0.1", Port: 8080,
		Check: &api.AgentServiceCheck{HTTP: "http://127.0.0.1:8080/ready", Interval: "2s"},
	}))
	cfg := announcerConfig(a)
	cfg.TLS = true
	announce(t, cfg)
	a.Await(t, "the check of now", func(all []consultest.Service) bool {
		return len(all) == 1 && all[0].Check.HTTP == "https://127.0.0.1:8080/ready"
	})
}

func TestAnnouncementSurvivesAnAbsentConsul(t *testing.T) {
	a := consultest.New(t)
	a.Stop()
	end := announce(t, announcerConfig(a))
	a.Listen(t, a.Addr())
	a.Await(t, "the registration once Consul is there", count(1))
	a.Stop()
	end() // returns although nobody answers
}

func TestAnnouncementOfEveryAddress(t *testing.T) {
	a := consultest.New(t)
	for _, ip := range []net.IP{net.IPv4zero, net.IPv6unspecified, nil} {
		cfg := announcerConfig(a)
		cfg.Listen = &net.TCPAddr{IP: ip, Port: 80}
		end := announce(t, cfg)
		s := a.Await(t, "the registration", count(1))[0]
		require.Empty(t, s.Address, "the agent's own address stands for %v", ip)
		require.Equal(t, "http://127.0.0.1:80/ready", s.Check.HTTP)
		end()
	}
}

func TestAnnouncerConfigErrorsNameEveryField(t *testing.T) {
	_, err := consul.NewAnnouncer(consul.AnnouncerConfig{CheckPath: "ready"})
	for _, field := range []string{"service", "listen", `check path is "ready"`, "check interval", "repair", "reap-after", "request timeout", "logger"} {
		require.ErrorContains(t, err, field)
	}
}

// TestAnnouncementOfATLSDaemon: Consul asks over HTTPS, or where the daemon wants
// certificates of its clients only connects.
func TestAnnouncementOfATLSDaemon(t *testing.T) {
	a := consultest.New(t)
	cfg := announcerConfig(a)
	cfg.TLS = true
	end := announce(t, cfg)
	s := a.Await(t, "the registration", count(1))[0]
	require.Equal(t, "https://127.0.0.1:8080/ready", s.Check.HTTP)
	require.True(t, s.Check.TLSSkipVerify)
	end()
	cfg.CheckPath = ""
	announce(t, cfg)
	s = a.Await(t, "the registration", count(1))[0]
	require.Empty(t, s.Check.HTTP)
	require.Equal(t, "127.0.0.1:8080", s.Check.TCP)
}
