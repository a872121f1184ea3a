package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (p *program) aclVerbs() map[string]verb {
	return map[string]verb{
		"acl bootstrap":    p.apiVerb(aclBootstrap),
		"acl token create": p.apiVerb(aclTokenCreate),
		"acl token list":   p.apiVerb(aclTokenList),
		"acl token delete": p.apiVerb(aclTokenDelete),
		"acl token self":   p.apiVerb(aclTokenSelf),
	}
}

var aclBootstrap = apiCommand{
	synopsis: "Create the first token, for an operator",
	about: `Creates the first token of a new cluster, with the role operator. It works once, and the
secret is shown once.`,
	run: func(ctx context.Context, c *apiClient, _ []string) error {
		token, err := c.BootstrapACL(ctx)
		if err != nil {
			return err
		}
		return c.print(token, func() error { return c.showToken(token) })
	},
}

var roles = []string{string(state.RoleOperator), string(state.RoleGateway), string(state.RoleAutoscaler), string(state.RoleReadOnly)}

var aclTokenCreate = apiCommand{
	synopsis: "Create a token",
	about: `Creates a token with a role: operator (full access), gateway (what a gateway needs),
autoscaler (reads and scales) or read-only. The secret is shown once.`,
	setup: func(fs *flag.FlagSet) runFunc {
		var r api.TokenRequest
		fs.StringVar(&r.Name, "name", "", "a `description` of the token")
		fs.StringVar(&r.Role, "role", "", "the `role`: "+strings.Join(roles, ", ")+" (required)")
		return func(ctx context.Context, c *apiClient, _ []string) error {
			if r.Role == "" {
				return usagef("-role is required: one of %s", strings.Join(roles, ", "))
			}
			if !slices.Contains(roles, r.Role) {
				return usagef("-role is %q: must be one of %s", r.Role, strings.Join(roles, ", "))
			}
			token, err := c.CreateToken(ctx, r)
			if err != nil {
				return err
			}
			return c.print(token, func() error { return c.showToken(token) })
		}
	},
}

func (c *apiClient) showToken(t api.Token) error {
	f := c.fields()
	f.set("Accessor", t.Accessor)
	f.setIf("Secret", t.SecretID)
	f.set("Role", t.Role)
	f.set("Name", t.Name)
	f.set("Created", clock(t.CreatedAt))
	return f.flush()
}

var aclTokenList = apiCommand{
	synopsis: "List the tokens",
	about:    `Lists the tokens, without their secrets.`,
	show: func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
		tokens, meta, err := c.Tokens(ctx, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(tokens), func() error {
			if len(tokens) == 0 {
				fmt.Fprintln(c.out, "No tokens.")
				return nil
			}
			t := c.table("ACCESSOR", "ROLE", "CREATED", "NAME")
			for _, k := range tokens {
				t.row(c.shortID(k.Accessor), k.Role, clock(k.CreatedAt), k.Name)
			}
			return t.flush()
		})
	},
}

var aclTokenDelete = apiCommand{
	synopsis: "Delete a token",
	about: `Deletes a token, given by its accessor or a unique prefix of it. Requests with its secret are
rejected from then on.`,
	args: []string{"ACCESSOR"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		accessor, err := c.findToken(ctx, args[0])
		if err != nil {
			return err
		}
		if err := c.DeleteToken(ctx, accessor); err != nil {
			return err
		}
		return c.done("Deleted token %s.\n", accessor)
	},
}

var aclTokenSelf = apiCommand{
	synopsis: "Show the token in use",
	about:    `Shows the token that -token or the environment selects.`,
	run: func(ctx context.Context, c *apiClient, _ []string) error {
		token, _, err := c.SelfToken(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(token, func() error { return c.showToken(token) })
	},
}

// findToken returns the accessor that is arg, or the only one that begins with it.
func (c *apiClient) findToken(ctx context.Context, arg string) (string, error) {
	tokens, _, err := c.Tokens(ctx, api.QueryOptions{})
	if err != nil {
		return "", err
	}
	var found []string
	for _, k := range tokens {
		if k.Accessor == arg {
			return arg, nil
		}
		if strings.HasPrefix(k.Accessor, arg) {
			found = append(found, k.Accessor)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no token %q: see \"remuda acl token list\"", arg)
	}
	return "", ambiguous(arg, found)
}
