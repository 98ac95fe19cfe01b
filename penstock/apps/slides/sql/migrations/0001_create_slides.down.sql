-- Usage, costs and conversions stay with Penstock; the app's tables and functions go.
drop table slides.reservations, slides.slides, slides.speeches, slides.sessions, slides.events cascade;
select penstock.set_provider(x.name, '{"status": "disabled"}')
from (values ('cloudconvert/jobs'), ('libreoffice/local')) as x(name);
select penstock.set_plan(p.name, jsonb_build_object('limits', p.limits - 'thumbnails'))
from penstock.plans p where p.limits ? 'thumbnails';
