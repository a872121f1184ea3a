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
		"acl bootstrap":    p.asking(aclBootstrap),
		"acl token create": p.asking(aclTokenCreate),
		"acl token list":   p.asking(aclTokenList),
		"acl token delete": p.asking(aclTokenDelete),
		"acl token self":   p.asking(aclTokenSelf),
	}
}

var aclBootstrap = question{
	synopsis: "Make the first token, an operator's",
	about:    `Makes the first token of a new cluster. It works once; the secret is shown once.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		token, err := c.BootstrapACL(ctx)
		if err != nil {
			return err
		}
		return c.print(token, func() error { return c.showToken(token) })
	},
}

var roles = []string{string(state.RoleOperator), string(state.RoleGateway), string(state.RoleAutoscaler), string(state.RoleReadOnly)}

var aclTokenCreate = question{
	synopsis: "Make a token",
	about: `Makes a token of a role: operator (everything), gateway (what a gateway needs), autoscaler (reads and scales), read-only.
The secret is shown once.`,
	setup: func(fs *flag.FlagSet) answering {
		var r api.TokenRequest
		fs.StringVar(&r.Name, "name", "", "a `remark` for people")
		fs.StringVar(&r.Role, "role", "", "the `role`: "+strings.Join(roles, ", ")+" (required)")
		return func(ctx context.Context, c *asker, _ []string) error {
			if !slices.Contains(roles, r.Role) {
				return usagef("-role is %q: want %s", r.Role, strings.Join(roles, ", "))
			}
			token, err := c.CreateToken(ctx, r)
			if err != nil {
				return err
			}
			return c.print(token, func() error { return c.showToken(token) })
		}
	},
}

func (c *asker) showToken(t api.Token) error {
	f := newFields(c.out)
	f.set("Accessor", t.Accessor)
	f.setIf("Secret", t.SecretID)
	f.set("Role", t.Role)
	f.set("Name", t.Name)
	f.set("Created", clock(t.Created))
	return f.flush()
}

var aclTokenList = question{
	synopsis: "List the tokens",
	about:    `Lists the tokens, without their secrets.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		tokens, _, err := c.Tokens(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(list(tokens), func() error {
			if len(tokens) == 0 {
				fmt.Fprintln(c.out, "There are no tokens.")
				return nil
			}
			t := newTable(c.out, "ACCESSOR", "ROLE", "NAME", "CREATED")
			for _, k := range tokens {
				t.row(k.Accessor, k.Role, k.Name, clock(k.Created))
			}
			return t.flush()
		})
	},
}

var aclTokenDelete = question{
	synopsis: "Take a token away",
	about:    `Takes a token away, given by its accessor. Whoever has it is refused from then on.`,
	args:     []string{"ACCESSOR"},
	run: func(ctx context.Context, c *asker, args []string) error {
		if err := c.DeleteToken(ctx, args[0]); err != nil {
			return err
		}
		return c.done("%s is gone.\n", args[0])
	},
}

var aclTokenSelf = question{
	synopsis: "Show the token that is in use",
	about:    `Shows which token -token or the environment gives.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		token, _, err := c.SelfToken(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(token, func() error { return c.showToken(token) })
	},
}
