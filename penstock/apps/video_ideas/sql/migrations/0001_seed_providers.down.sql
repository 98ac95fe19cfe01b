-- What was made there and what it cost stays: providers are not removed, but take nothing any more.
select penstock.set_provider(x.name, '{"status": "disabled", "features": []}')
from (values ('simulator/gpt-brook'), ('simulator/gpt-river'), ('studio/sketch'), ('studio/print'), ('studio/cinema')) as x(name);
