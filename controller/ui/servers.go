package ui

import "remuda/controller/api"

// serversData is what the page of servers shows.
type serversData struct {
	Raft     api.RaftConfiguration
	Self     api.AgentSelf
	Health   api.AgentHealth
	Gateways []api.Gateway
	// Autoscalers are those that asked the leader in the last hour.
	Autoscalers []api.Autoscaler
	Pools       []api.Pool
}

// loadServers reads what cannot be watched.
func loadServers(v *visit) (any, error) {
	v.unwatched()
	var d serversData
	var err error
	if d.Raft, _, err = v.api.RaftConfiguration(v.ctx, api.QueryOptions{}); err != nil {
		return nil, err
	}
	if d.Self, err = v.api.AgentSelf(v.ctx); err != nil {
		return nil, err
	}
	if d.Health, err = v.api.AgentHealth(v.ctx); err != nil {
		return nil, err
	}
	if d.Gateways, err = v.api.Gateways(v.ctx); err != nil {
		return nil, err
	}
	if d.Autoscalers, err = v.api.Autoscalers(v.ctx); err != nil {
		return nil, err
	}
	d.Pools, _, err = v.api.Pools(v.ctx, api.QueryOptions{})
	return d, err
}
